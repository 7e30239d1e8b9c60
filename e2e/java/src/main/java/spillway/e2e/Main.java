package spillway.e2e;

import java.util.Arrays;

/** The verbs of run.sh. */
public final class Main {
    public static void main(String[] args) throws Exception {
        String[] rest = Arrays.copyOfRange(args, Math.min(1, args.length), args.length);
        switch (args.length == 0 ? "" : args[0]) {
            case "serve" -> Serve.main(rest);
            case "throughput" -> Throughput.main(rest);
            default -> {
                System.err.println("verbs: serve, throughput SOURCE BODY WARM SECONDS");
                System.exit(64);
            }
        }
    }
}
