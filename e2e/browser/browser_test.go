// Package browser opens the live page of a running job in a headless browser.
package browser

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/e2e/need"
)

var liveURL = regexp.MustCompile(`http://[^ "]+/`)

// start runs a slow job, and returns where its page is.
func start(t *testing.T) string {
	bin := filepath.Join(t.TempDir(), "ckpt-run")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/ckpt-run")
	build.Dir = filepath.Join("..", "..") // the main module
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, bin, "slow", "unaligned", "--interval", "1s", "--duration", "0", "--listen", "127.0.0.1:0", "--store", t.TempDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SPILLWAY_") }) // those are options
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	found := make(chan string, 1)
	var reading sync.WaitGroup
	var said strings.Builder
	reading.Go(func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(&said, lines.Text())
			if u := liveURL.FindString(lines.Text()); u != "" {
				select {
				case found <- u:
				default:
				}
			}
		}
		close(found)
	})
	t.Cleanup(func() {
		cancel()
		reading.Wait()
		err := cmd.Wait()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			require.Equal(t, 130, exit.ExitCode(), "Ctrl-C ends it cleanly: %s", said.String())
		}
	})
	u, ok := <-found
	require.True(t, ok, "it did not say where its page is")
	return u
}

// browser returns the context of a browser, and what it complained about.
func browser(t *testing.T) (context.Context, func() []string) {
	path := need.Tool(t, "the live page", "a browser (Debian: apt-get install chromium)", "chromium", "chromium-browser", "google-chrome")
	o := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1200, 1500))
	alloc, stop := chromedp.NewExecAllocator(t.Context(), o...)
	t.Cleanup(stop)
	ctx, stopTab := chromedp.NewContext(alloc)
	t.Cleanup(stopTab)
	ctx, stopTime := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(stopTime)
	var mu sync.Mutex
	var complaints []string
	chromedp.ListenTarget(ctx, func(ev any) {
		mu.Lock()
		defer mu.Unlock()
		switch ev := ev.(type) {
		case *runtime.EventConsoleAPICalled:
			complaints = append(complaints, fmt.Sprintf("%s: %v", ev.Type, ev.Args))
		case *runtime.EventExceptionThrown:
			complaints = append(complaints, ev.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			complaints = append(complaints, ev.Entry.Text)
		}
	})
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return complaints
	}
}

// TestLivePage looks at the page of a running job, light and dark, and works it
// with the keyboard. SCREENSHOTS=DIR keeps what it saw.
func TestLivePage(t *testing.T) {
	ctx, complaints := browser(t)
	url := start(t)
	var bottleneck, rows string
	var boxes, charts int
	require.NoError(t, chromedp.Run(ctx, log.Enable(), chromedp.Navigate(url), chromedp.WaitReady(`body[data-ready]`),
		chromedp.Poll(`document.querySelectorAll("#rows button").length >= 2 && document.getElementById("bottleneck").textContent === "count"`, nil, chromedp.WithPollingTimeout(time.Minute)),
		chromedp.Text("#bottleneck", &bottleneck), chromedp.Text("#rows", &rows),
		chromedp.Evaluate(`document.querySelectorAll(".vertex").length`, &boxes), chromedp.Evaluate(`document.querySelectorAll("#charts canvas").length`, &charts)))
	require.Equal(t, "count", bottleneck)
	require.Contains(t, rows, "completed")
	require.Contains(t, rows, "unaligned")
	require.Equal(t, 3, boxes, "source, count, sink")
	require.Equal(t, 2, charts)

	for _, scheme := range []string{"light", "dark"} {
		var background string
		var picture []byte
		require.NoError(t, chromedp.Run(ctx, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
			chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &background),
			chromedp.Poll(`document.querySelectorAll("#charts canvas").length === 2`, nil), chromedp.Sleep(1500*time.Millisecond), // the next refresh redraws the charts //lint:sleep a picture, no decision
			chromedp.FullScreenshot(&picture, 100)))
		require.Equal(t, map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[scheme], background)
		require.NotEmpty(t, picture)
		if dir := os.Getenv("SCREENSHOTS"); dir != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "live-"+scheme+".png"), picture, 0o644))
		}
	}

	// By keyboard alone: the skip link, then on to the first checkpoint.
	var expanded, detail string
	require.NoError(t, chromedp.Run(ctx, chromedp.KeyEvent(kb.Tab),
		chromedp.Poll(`document.activeElement.className === "skip"`, nil, chromedp.WithPollingTimeout(10*time.Second)), chromedp.KeyEvent(kb.Enter)))
	for range 20 {
		var tag string
		require.NoError(t, chromedp.Run(ctx, chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`document.activeElement.tagName`, &tag)))
		if tag == "BUTTON" {
			break
		}
	}
	require.NoError(t, chromedp.Run(ctx, chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(".detail"),
		chromedp.AttributeValue(`#rows button[aria-expanded="true"]`, "aria-expanded", &expanded, nil), chromedp.Text(".detail", &detail)))
	require.Equal(t, "true", expanded)
	for _, subtask := range []string{"source/0", "count/1", "sink/0"} {
		require.Contains(t, detail, subtask)
	}

	require.Empty(t, complaints(), "the console")
}

// TestJobEnds has the page say that nobody answers any more.
func TestJobEnds(t *testing.T) {
	ctx, _ := browser(t)
	var status string
	require.True(t, t.Run("job", func(t *testing.T) {
		url := start(t)
		require.NoError(t, chromedp.Run(ctx, chromedp.Navigate(url), chromedp.WaitReady(`body[data-ready]`)))
	}))
	require.NoError(t, chromedp.Run(ctx, chromedp.WaitVisible("#status.lost"), chromedp.Text("#status", &status)))
	require.Contains(t, status, "does not answer")
}
