package spillway.e2e;

import java.util.concurrent.atomic.LongAdder;
import java.util.regex.*;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.*;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.*;

/** Counts what Flink puts back into input channels and subpartitions, by its trace log: nothing else tells. */
final class Replayed extends AbstractAppender {
    private static final String LOGGER = "org.apache.flink.runtime.io.network.logger.NetworkActionsLogger";
    private static final Pattern SIZE = Pattern.compile("size=(\\d+)");

    final LongAdder inputBuffers = new LongAdder(), inputBytes = new LongAdder(), outputBuffers = new LongAdder(), outputBytes = new LongAdder();

    private Replayed() { super("replayed", null, null, true, Property.EMPTY_ARRAY); }

    static Replayed install() {
        Replayed r = new Replayed();
        r.start();
        LoggerContext context = (LoggerContext) LogManager.getContext(false);
        LoggerConfig logger = LoggerConfig.newBuilder().withConfig(context.getConfiguration()).withLoggerName(LOGGER).withLevel(Level.TRACE).withAdditivity(false).build();
        logger.addAppender(r, Level.TRACE, null);
        context.getConfiguration().addLogger(LOGGER, logger);
        context.updateLoggers();
        return r;
    }

    void reset() { for (LongAdder a : new LongAdder[] {inputBuffers, inputBytes, outputBuffers, outputBytes}) a.reset(); }

    @Override public void append(LogEvent e) {
        String text = e.getMessage().getFormattedMessage();
        boolean input = text.contains("InputChannelRecoveredStateHandler#recover");
        if (!input && !text.contains("PipelinedSubpartition#addRecovered")) return;
        Matcher m = SIZE.matcher(text);
        long n = m.find() ? Long.parseLong(m.group(1)) : 0;
        if (n == 12 || n == 4) return; // events: the descriptor in front of each buffer, and the end
        (input ? inputBuffers : outputBuffers).increment();
        (input ? inputBytes : outputBytes).add(n);
    }
}
