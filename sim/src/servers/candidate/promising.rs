//! What a master does of promises: it gives and asks for them, and for copies of its state. As `gc-master/src/promising.rs`
//! does over a network.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use percolator_protocol::election::{
    CopyRequest, PromiseCall, PromiseRecord, PromiseRequest, PromiseRound, StateNumber,
};
use percolator_server::promises::{
    CopyRefusal, IntroducedStandby, Introduction, LeaderRight, Promiser,
};
use tokio::sync::oneshot;

use super::Candidate;
use crate::messages::{Ask, Caller};
use crate::servers::copies::StateCopy;
use crate::servers::served::Shared;

/// A state that the register has not taken is copied after so many rounds of promises: 500 ms of the shipped times.
const REGISTER_PATIENCE_ROUNDS: f64 = 2.5;

impl Candidate {
    /// Makes copies of states that the register has not taken in time; never ends.
    pub(super) async fn copy_what_waits(self: &Arc<Self>, term: u64, shared: &Shared) {
        let node = self.master.node;
        loop {
            let changes = shared.changes();
            if shared.is_durable(changes) {
                shared.copied.notified().await;
                continue;
            }
            self.world.sleep_on(node, self.register_patience()).await;
            if shared.is_durable(changes) {
                continue;
            }
            let Some((changes, bytes)) = shared.newest() else {
                continue;
            };
            let number = changes;
            if self.copy(StateNumber { term, number }, &bytes).await {
                self.durable(term, changes, shared);
            } else {
                let retry = Duration::from_millis(self.replicated.timing.promise_ms);
                self.world.sleep_on(node, retry).await;
            }
        }
    }

    /// How long a state waits for its register before it is copied.
    fn register_patience(&self) -> Duration {
        if self.replica().election().leads_by_promises(self.now_ms()) {
            return Duration::ZERO;
        }
        Duration::from_millis(self.replicated.timing.promise_ms).mul_f64(REGISTER_PATIENCE_ROUNDS)
    }

    /// Makes this state durable in the folders of all masters that could take over, and in this one's. Whether it may be shown.
    async fn copy(self: &Arc<Self>, state: StateNumber, bytes: &Arc<Vec<u8>>) -> bool {
        let (register, calls) = {
            let replica = self.replica();
            (replica.register(), replica.ask_copies(self.now_ms()))
        };
        let (Some(register), Some(calls)) = (register, calls) else {
            return false;
        };
        let timeout = Duration::from_millis(self.replicated.timing.right_ms);
        let others = calls.into_iter().map(|call| async move {
            let request = CopyRequest {
                promise: call.request,
                number: state.number,
            };
            let ask = Ask::KeepCopy {
                request,
                state: bytes.clone(),
            };
            if self.promises.ask(&call, ask, timeout).await {
                self.replica().copied(self.now_ms(), &call, state.number);
            }
        });
        // A write goes on if nobody waits for it any more.
        let (done, kept) = oneshot::channel();
        let (this, bytes2) = (self.clone(), bytes.clone());
        let keeping = async move {
            if this.keep_state(register, state, bytes2).await.is_ok() {
                this.replica().copied_own(state);
            }
            let _ = done.send(());
        };
        self.world.spawn(self.master.node, keeping.boxed());
        join_all(others).await;
        let _ = kept.await;
        let now_ms = self.now_ms();
        self.replica().show_copied(now_ms, state)
    }

    async fn keep_state(
        &self,
        register: u64,
        number: StateNumber,
        state: Arc<Vec<u8>>,
    ) -> Result<(), CopyRefusal> {
        let takes = (self.promises.takes)();
        let which = (register, number);
        self.copies.keep(&self.world, takes, which, state).await
    }

    /// The copy in this master's folder, of the register in which it leads.
    ///
    /// # Errors
    /// It can't be read now.
    pub(super) async fn own_copy(&self) -> Result<Option<StateCopy>, percolator_server::Error> {
        let register = self.replica().register();
        match register {
            Some(register) => self.copies.load(register).await,
            None => Ok(None),
        }
    }

    /// Another master asks for a promise or for a copy, or introduces itself. False: it asks something else.
    pub(in crate::servers) fn answer_peer(self: &Arc<Self>, caller: Caller, ask: &Ask) -> bool {
        match ask {
            Ask::Promise(request) => self.promises.promise(self, caller, request),
            Ask::Introduce(standby) => self.promises.introduced(&**self, caller, standby),
            Ask::KeepCopy { request, state } => {
                let (this, request, state) = (self.clone(), *request, state.to_vec());
                let keeping = async move {
                    let copied = this.keep_copy(&request, state).await.is_ok();
                    let kept = copied && this.promises.keep(&*this).await.is_some();
                    this.promises.reply(caller, kept);
                };
                self.world.spawn(self.master.node, keeping.boxed());
            }
            _ => return false,
        }
        true
    }
}

impl Promiser for Candidate {
    const ROLE: &'static str = "master";
    const COPY_BYTES_MAX: usize = usize::MAX;

    fn record(&self) -> Option<PromiseRecord> {
        Some(self.replica().record())
    }

    fn ask_promises(&self) -> Option<PromiseRound> {
        let now_ms = self.now_ms();
        self.replica().ask_promises(now_ms)
    }

    fn kept(&self, record: &PromiseRecord) {
        self.replica().kept(record);
    }

    fn promised(&self, call: &PromiseCall) {
        let now_ms = self.now_ms();
        self.replica().promised(now_ms, call);
    }

    fn promise(&self, request: &PromiseRequest) -> Option<PromiseRecord> {
        let now_ms = self.now_ms();
        self.replica().promise(now_ms, request)
    }

    fn introduction(&self) -> Option<Introduction> {
        let replica = self.replica();
        let election = replica.election();
        Some(Introduction {
            leader: election.introduces_to()?.to_owned(),
            standby: IntroducedStandby::new(replica.register()?, election.member()),
        })
    }

    fn introduced(&self, standby: &IntroducedStandby) {
        let now_ms = self.now_ms();
        let mut replica = self.replica();
        if replica.register() == Some(standby.register) {
            replica.introduced(now_ms, &standby.peer);
        }
    }

    fn right(&self) -> LeaderRight {
        let now_ms = self.now_ms();
        let replica = self.replica();
        LeaderRight {
            leads: replica.leads(now_ms),
            is_by_promises: replica.election().leads_by_promises(now_ms),
        }
    }

    async fn term_begun(&self) {
        self.begun.notified().await;
    }

    fn count_promise(&self, _: &'static str) {}

    async fn keep_copy(&self, request: &CopyRequest, state: Vec<u8>) -> Result<(), CopyRefusal> {
        let now_ms = self.now_ms();
        let promised = self.replica().keep_copy(now_ms, request);
        promised.ok_or(CopyRefusal::Refused)?;
        let register = request.promise.register;
        self.keep_state(register, request.state(), Arc::new(state))
            .await
    }
}
