//! The thread that makes groups of changes durable, one after the other.

use std::sync::Arc;
use std::sync::mpsc as thread_channel;
use std::time::Instant;

use percolator_engine::{Batch, Engine};
use percolator_server::StallWatch;
use percolator_telemetry::who;
use tokio::sync::mpsc;

use crate::Error;
use crate::metrics::Metrics;

/// Both ends of a committer's channels. Its thread ends when `groups` is dropped.
pub(crate) struct Committer {
    /// The groups to make durable.
    pub(crate) groups: thread_channel::Sender<Arc<Vec<Batch>>>,
    /// The result of each group, in their order.
    pub(crate) committed: mpsc::UnboundedReceiver<Result<(), percolator_engine::Error>>,
}

impl Committer {
    /// Starts the thread of this server.
    ///
    /// # Errors
    /// The system can't start a thread.
    pub(crate) fn start(
        server: &str,
        engine: Arc<dyn Engine>,
        metrics: Arc<Metrics>,
        stall: StallWatch,
    ) -> Result<Self, Error> {
        let (groups, to_commit) = thread_channel::channel::<Arc<Vec<Batch>>>();
        let (done, committed) = mpsc::unbounded_channel();
        std::thread::Builder::new()
            .name(format!("{server}-commit"))
            .spawn(who::inherited(move || {
                while let Ok(group) = to_commit.recv() {
                    let began = Instant::now();
                    let writing = stall.writing();
                    let result = engine.commit(&group);
                    drop(writing);
                    metrics.committed(&group, &result, began.elapsed());
                    if done.send(result).is_err() {
                        break;
                    }
                }
            }))
            .map_err(|cause| percolator_server::Error::Runtime {
                name: server.to_owned(),
                cause,
            })?;
        Ok(Self { groups, committed })
    }
}
