//! What a process of the simulator is to a master's part in the election.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_gc_master::Host;
use percolator_protocol::election::{CopyRequest, PromiseCall, StateNumber};
use percolator_server::promises::PromiseRefusal;
use tokio::sync::oneshot;

use crate::messages::Ask;
use crate::rng::Rng;
use crate::servers::copies::CopyFile;
use crate::servers::master::Master;
use crate::servers::promises::PromisePlace;

/// A process of a master, with its network and its folder.
pub(in crate::servers) struct MasterHost {
    pub(super) master: Arc<Master>,
    pub(super) promises: PromisePlace,
    pub(super) copies: Arc<CopyFile>,
}

impl Host for MasterHost {
    fn now_ms(&self) -> u64 {
        let now = self.promises.world.mono(self.master.node);
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    }

    async fn sleep(&self, duration: Duration) {
        let world = &self.promises.world;
        world.sleep_on(self.master.node, duration).await;
    }

    fn new_incarnation(&self) -> u64 {
        let incarnation = self.master.dice.of("incarnations", Rng::next).max(1);
        self.master.before.lock().push(incarnation);
        incarnation
    }

    async fn send_copy(
        &self,
        call: &PromiseCall,
        number: u64,
        state: &Arc<Vec<u8>>,
    ) -> Result<(), String> {
        let request = CopyRequest {
            promise: call.request,
            number,
        };
        let ask = Ask::KeepCopy {
            request,
            state: state.clone(),
        };
        let timeout = Duration::from_millis(self.promises.timing.right_ms);
        self.promises.ask_peer(&call.address, ask, timeout).await
    }

    async fn keep_copy(
        &self,
        register: u64,
        number: StateNumber,
        state: Arc<Vec<u8>>,
    ) -> Result<(), PromiseRefusal> {
        let (done, kept) = oneshot::channel();
        let takes = self.promises.takes.clone();
        let (copies, world) = (self.copies.clone(), self.promises.world.clone());
        let keeping = async move {
            let kept = copies
                .keep(&world, &*takes, (register, number), state)
                .await;
            // Perhaps nobody waits for it any more.
            let _ = done.send(kept);
        };
        let world = &self.promises.world;
        world.spawn(self.master.node, keeping.boxed());
        let ended = || PromiseRefusal::Failed("the process has ended".to_owned());
        kept.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn load_copy(
        &self,
        register: u64,
    ) -> Result<Option<(StateNumber, Vec<u8>)>, percolator_server::Error> {
        let copy = self.copies.load(register).await?;
        Ok(copy.map(|copy| (copy.number, copy.state.to_vec())))
    }
}
