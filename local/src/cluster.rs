//! The servers of a layout, running.

use percolator_telemetry::logs;

use crate::followed;
use crate::layout::Layout;
use crate::processes::{self, Processes};
use crate::running::Running;
use crate::threads::{self, Threads};

/// A cluster that runs.
pub struct Cluster(Kind);

enum Kind {
    Threads(Threads),
    Processes(Processes),
}

impl Cluster {
    /// Starts all servers, as processes of their own or as threads of this one, whose log then goes to standard error. None if
    /// `stop` ends before that is done: those that were started are stopped.
    ///
    /// # Errors
    /// One of them could not be started; those before it are stopped.
    pub async fn start(
        layout: Layout,
        processes: bool,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<Option<Self>> {
        if processes {
            let started = processes::start(layout, stop).await?;
            return Ok(started.map(|it| Self(Kind::Processes(it))));
        }
        // The servers' usual events are no news to a person at a terminal.
        logs::init_with(logs::Settings {
            level_file: Some(followed::log_level_file(&layout.data_dir)),
            ..logs::Settings::from("warn")
        });
        let started = threads::start(layout, stop).await?;
        Ok(started.map(|it| Self(Kind::Threads(it))))
    }

    /// What runs where at the moment.
    pub fn running(&self) -> Vec<Running> {
        match &self.0 {
            Kind::Threads(threads) => threads.running(),
            Kind::Processes(processes) => processes.running(),
        }
    }

    /// Ends with why the cluster can't go on, if that happens.
    pub async fn failed(&mut self) -> anyhow::Error {
        match &mut self.0 {
            Kind::Threads(threads) => threads.failed().await,
            Kind::Processes(processes) => processes.failed().await,
        }
    }

    /// Stops all servers, the masters last.
    ///
    /// # Errors
    /// A server ended in a panic, or the list of what runs can't be removed.
    pub async fn stop(self) -> anyhow::Result<()> {
        match self.0 {
            Kind::Threads(threads) => threads.stop().await,
            Kind::Processes(processes) => processes.stop().await,
        }
    }
}
