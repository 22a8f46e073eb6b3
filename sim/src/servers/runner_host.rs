//! A master's process of the simulator, as the shipped runner uses it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use percolator_gc_master::{
    COMMAND_TIMEOUT, Command, Directory, Done, Note, PersistError, Runner, RunnerHost,
};
use percolator_protocol::election::StateNumber;
use percolator_tablet::ServerIncarnation;
use percolator_tablet::runner::MasterCommand;

use crate::messages::{Answer, Ask};
use crate::mutation::Mutation;
use crate::seen::Seen;
use crate::servers::commands::command_of;
use crate::servers::master::Master;
use crate::servers::tablet;
use crate::world::World;

/// A directory that is served in one process.
pub(super) type SimRunner = Runner<SimRunnerHost>;

/// The process of a master that serves.
pub(super) struct SimRunnerHost {
    pub(super) master: Arc<Master>,
    pub(super) world: Arc<World>,
}

impl SimRunnerHost {
    /// Sends every command to a second server too: a mutant.
    fn send_to_other(&self, runner: &SimRunner, to: &str, command: &Command) {
        let other = if to == "tablet-0" {
            "tablet-1"
        } else {
            "tablet-0"
        };
        let incarnation = runner.read_unshown(|directory, _| directory.incarnation(other));
        let node = self.world.network.lock().at(&tablet::address(other));
        if let Some(node) = node {
            let ask = ask(command, other.to_owned(), incarnation);
            let node_of_master = self.master.node;
            let asked = self.world.call(node_of_master, node, ask, COMMAND_TIMEOUT);
            self.spawn(asked.map(drop).boxed());
        }
    }
}

fn ask(command: &Command, server: String, incarnation: u64) -> Ask {
    Ask::Command(MasterCommand {
        cluster_id: command.cluster_id.clone(),
        to: Some(ServerIncarnation {
            server,
            incarnation,
        }),
        command: command_of(&command.action),
    })
}

impl RunnerHost for SimRunnerHost {
    fn now(&self) -> Duration {
        self.world.mono(self.master.node)
    }

    async fn sleep(&self, duration: Duration) {
        self.world.sleep_on(self.master.node, duration).await;
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.world.spawn(self.master.node, task);
    }

    async fn send(&self, runner: &SimRunner, command: &Command) -> Result<Done, String> {
        let to = self.world.network.lock().at(&command.address);
        let to = to.ok_or_else(|| format!("nobody listens at {}", command.address))?;
        if self.master.two_owners {
            self.send_to_other(runner, &self.world.name(to), command);
        }
        let ask = ask(command, command.server.clone(), command.incarnation);
        let asked = self.world.call(self.master.node, to, ask, COMMAND_TIMEOUT);
        match asked.await {
            Ok(Answer::Done(outcome)) => outcome,
            Ok(_) => Err("another question was answered".to_owned()),
            Err(lost) => Err(lost.why),
        }
    }

    fn log(&self, note: &Note) {
        self.world.note(|| format!("master: {note}"));
    }

    fn stepped(&self, directory: &Directory) {
        self.world.see(&Seen::MasterHolds(directory.held()));
    }

    /// Of several masters the next leader goes on from this state, or from a later one.
    fn becomes_durable(&self, _: &Directory, number: StateNumber) -> Result<(), PersistError> {
        if self.master.replicated.is_some() {
            self.world.see(&Seen::DurableState(number));
        }
        Ok(())
    }

    fn shows_early(&self) -> bool {
        let is_mutant = self.master.mutation == Some(Mutation::ShownBeforeDurable);
        is_mutant && self.master.replicated.is_some()
    }
}
