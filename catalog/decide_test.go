
// TestBaseWishText takes what MarshalText writes, and nothing else.
func TestBaseWishText(t *testing.T) {
	for _, w := range []BaseWish{BaseLatest, BaseFresh} {
		text, err := w.MarshalText()
		require.NoError(t, err)
		back := BaseID
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, w, back)
	}
	for _, text := range []string{"", "7", "Latest", "latest "} {
		w := BaseID
		require.ErrorIs(t, w.UnmarshalText([]byte(text)), inflight.ErrConfig)
		require.Equal(t, BaseID, w)
	}
}
