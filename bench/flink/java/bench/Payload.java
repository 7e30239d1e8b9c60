package bench;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;

/** Deterministic payload; mirrored byte for byte by bench/payload (see bench/README.md). */
public final class Payload {
    static final long BASE = 0x464C494E4B323033L; // "FLINK203"
    static final String[] EVENTS = {
        "click", "view", "cart", "purchase", "login", "logout", "search", "refund"
    };
    static final String[] WORDS =
            ("alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november"
                            + " oscar papa quebec romeo sierra tango uniform victor whiskey xray yankee"
                            + " zulu stream state channel buffer barrier checkpoint window operator"
                            + " source sink key group value record event time watermark latency"
                            + " throughput network memory segment pool task slot manager job vertex"
                            + " subtask parallel restore snapshot aligned unaligned offset handle"
                            + " metadata commit")
                    .split(" ");

    private long s;

    Payload(int sub, int dir, int ch) {
        this.s = BASE ^ (((long) sub << 32) | ((long) dir << 16) | ch);
    }

    long next() {
        s += 0x9E3779B97F4A7C15L;
        long z = s;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }

    int below(int n) {
        return (int) Long.remainderUnsigned(next(), n);
    }

    /** The channel's byte stream; buffer b is bytes [b*size, (b+1)*size). dir 0=input 1=output. */
    static byte[] channel(String kind, int sub, int dir, int ch, int total) {
        Payload p = new Payload(sub, dir, ch);
        byte[] out = new byte[total];
        if (kind.equals("random")) {
            for (int i = 0; i < total; ) {
                long v = p.next();
                for (int k = 0; k < 8 && i < total; k++, i++, v >>>= 8) {
                    out[i] = (byte) v;
                }
            }
            return out;
        }
        if (!kind.equals("json")) {
            throw new IllegalArgumentException(kind);
        }
        int pos = 0;
        StringBuilder sb = new StringBuilder(1200);
        for (long r = 0; pos < total; r++) {
            sb.setLength(0);
            String id = Long.toHexString(p.next());
            sb.append("{\"id\":\"");
            for (int i = id.length(); i < 16; i++) sb.append('0');
            sb.append(id).append("\",\"ts\":").append(1700000000000L + r).append(",\"user\":\"user_");
            String u = Integer.toString(p.below(100000));
            for (int i = u.length(); i < 5; i++) sb.append('0');
            sb.append(u).append("\",\"event\":\"").append(EVENTS[p.below(8)]);
            int a = p.below(1000000);
            sb.append("\",\"amount\":").append(a / 100).append('.');
            if (a % 100 < 10) sb.append('0');
            sb.append(a % 100).append(",\"msg\":\"");
            int start = sb.length();
            while (sb.length() - start < 880) {
                if (sb.length() > start) sb.append(' ');
                sb.append(WORDS[p.below(64)]);
            }
            sb.append("\"}");
            byte[] rec = sb.toString().getBytes(StandardCharsets.US_ASCII);
            int n = rec.length;
            byte[] pre = {(byte) (n >>> 24), (byte) (n >>> 16), (byte) (n >>> 8), (byte) n};
            int k = Math.min(4, total - pos);
            System.arraycopy(pre, 0, out, pos, k);
            pos += k;
            k = Math.min(n, total - pos);
            System.arraycopy(rec, 0, out, pos, k);
            pos += k;
        }
        return out;
    }

    public static void main(String[] a) throws Exception {
        if (WORDS.length != 64) throw new IllegalStateException("words " + WORDS.length);
        for (String kind : new String[] {"random", "json"}) {
            for (int[] c : new int[][] {{0, 0, 0, 262144}, {63, 1, 7, 25600}, {5, 1, 3, 262144}}) {
                byte[] b = channel(kind, c[0], c[1], c[2], c[3]);
                byte[] h = MessageDigest.getInstance("SHA-256").digest(b);
                StringBuilder sb = new StringBuilder();
                for (byte x : h) sb.append(String.format("%02x", x));
                System.out.println(
                        kind + " sub=" + c[0] + " dir=" + c[1] + " ch=" + c[2] + " n=" + c[3] + " "
                                + sb);
            }
        }
    }
}
