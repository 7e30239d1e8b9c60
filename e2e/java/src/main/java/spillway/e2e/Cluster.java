package spillway.e2e;

import java.util.concurrent.*;
import org.apache.flink.api.common.*;
import org.apache.flink.configuration.*;
import org.apache.flink.core.execution.CheckpointType;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.*;
import org.apache.flink.runtime.jobgraph.*;
import org.apache.flink.runtime.jobmaster.JobResult;
import org.apache.flink.runtime.minicluster.*;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** A MiniCluster with one task manager, and a few verbs on its jobs. */
final class Cluster implements AutoCloseable {
    private final MiniCluster mini;
    private final Configuration conf;

    /** Settings of the task manager: segment size, network memory. Those of jobs come with the job. */
    Cluster(int slots, String... settings) throws Exception {
        conf = set(new Configuration(), settings);
        set(conf, "rest.port", "0", "rest.bind-port", "0", "web.submit.enable", "false");
        mini = new MiniCluster(new MiniClusterConfiguration.Builder().setConfiguration(conf).setNumTaskManagers(1).setNumSlotsPerTaskManager(slots).build());
        mini.start();
    }

    static Configuration set(Configuration c, String... kv) {
        for (int i = 0; i < kv.length; i += 2) c.setString(kv[i], kv[i + 1]);
        return c;
    }

    /** An environment whose jobs write checkpoints to dir: exactly once, retained, without restarts. */
    StreamExecutionEnvironment environment(String dir, String... settings) {
        Configuration c = set(new Configuration(conf), "restart-strategy.type", "none");
        if (dir != null)
            set(c, "execution.checkpointing.mode", "EXACTLY_ONCE", "execution.checkpointing.timeout", "10 min",
                    "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION",
                    "execution.checkpointing.storage", "filesystem", "execution.checkpointing.dir", "file://" + dir,
                    "execution.checkpointing.create-subdir", "false", "execution.checkpointing.unaligned.enabled", "true");
        return StreamExecutionEnvironment.getExecutionEnvironment(set(c, settings));
    }

    JobID submit(StreamExecutionEnvironment env, String name, String restoreFrom) throws Exception {
        var graph = env.getStreamGraph();
        graph.setJobName(name);
        JobGraph job = graph.getJobGraph();
        if (restoreFrom != null) job.setSavepointRestoreSettings(SavepointRestoreSettings.forPath(restoreFrom, false));
        return mini.submitJob(job).get().getJobID();
    }

    /** Waits until every subtask runs. */
    void awaitRunning(JobID id) throws Exception {
        for (long end = System.nanoTime() + TimeUnit.MINUTES.toNanos(1); System.nanoTime() < end; Thread.sleep(20)) {
            AccessExecutionGraph g = mini.getExecutionGraph(id).get();
            if (g.getState().isTerminalState()) throw new IllegalStateException("the job is " + g.getState());
            boolean all = g.getState() == JobStatus.RUNNING;
            for (AccessExecutionVertex v : g.getAllExecutionVertices()) all &= v.getExecutionState() == ExecutionState.RUNNING;
            if (all) return;
        }
        throw new TimeoutException("the job did not start");
    }

    JobResult await(JobID id, long seconds) throws Exception { return mini.requestJobResult(id).get(seconds, TimeUnit.SECONDS); }

    /** Triggers a checkpoint and waits for it. */
    long checkpoint(JobID id) throws Exception { return mini.triggerCheckpoint(id, CheckpointType.CONFIGURED).get(5, TimeUnit.MINUTES); }

    long completedCheckpoints(JobID id) throws Exception {
        return mini.getExecutionGraph(id).get().getCheckpointStatsSnapshot().getCounts().getNumberOfCompletedCheckpoints();
    }

    void cancel(JobID id) throws Exception {
        mini.cancelJob(id).get(1, TimeUnit.MINUTES);
        await(id, 60);
    }

    @Override public void close() throws Exception { mini.close(); }
}
