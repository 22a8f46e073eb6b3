//! What a master does of promises: it gives and asks for them, and for copies of its state.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::election::{
    CopyRequest, PromiseCall, PromiseRecord, PromiseRequest, PromiseRound, StateNumber,
};
use percolator_server::SmallFile;
use percolator_server::promises::{
    CopyRefusal, IntroducedStandby, Introduction, LeaderRight, Promiser, send_copy,
};
use tokio::task::JoinSet;

use crate::leadership::{Candidate, boot_ms};

/// A state that the register has not taken for so long is copied.
const REGISTER_PATIENCE: Duration = Duration::from_millis(500);
/// A copy that takes longer is sent again.
const COPY_TIMEOUT: Duration = Duration::from_secs(2);

impl Promiser for Candidate {
    const ROLE: &'static str = "master";
    const COPY_BYTES_MAX: usize = SmallFile::VALUE_BYTES_MAX;

    fn record(&self) -> Option<PromiseRecord> {
        Some(self.replica().record())
    }

    fn ask_promises(&self) -> Option<PromiseRound> {
        self.replica().ask_promises(boot_ms())
    }

    fn kept(&self, record: &PromiseRecord) {
        self.replica().kept(record);
    }

    fn promised(&self, call: &PromiseCall) {
        self.replica().promised(boot_ms(), call);
    }

    fn promise(&self, request: &PromiseRequest) -> Option<PromiseRecord> {
        self.replica().promise(boot_ms(), request)
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
        let now_ms = boot_ms();
        let mut replica = self.replica();
        if replica.register() != Some(standby.register) {
            return;
        }
        if standby.is_leaving {
            self.standbys.left(&standby.server);
        } else {
            replica.introduced(now_ms, &standby.peer);
            self.standbys.introduced(now_ms, standby);
        }
    }

    fn right(&self) -> LeaderRight {
        let now_ms = boot_ms();
        let replica = self.replica();
        LeaderRight {
            leads: replica.leads(now_ms),
            is_by_promises: replica.election().leads_by_promises(now_ms),
        }
    }

    async fn term_begun(&self) {
        self.begun.notified().await;
    }

    fn count_promise(&self, result: &'static str) {
        self.metrics.promise(result);
    }

    async fn keep_copy(&self, request: &CopyRequest, state: Vec<u8>) -> Result<(), CopyRefusal> {
        let promised = self.replica().keep_copy(boot_ms(), request);
        promised.ok_or(CopyRefusal::Refused)?;
        let register = request.promise.register;
        let kept = self.copies.keep(register, request.state(), Arc::new(state));
        kept.await
    }
}

impl Candidate {
    /// How long a state waits for its register before it is copied.
    pub(crate) fn register_patience(&self) -> Duration {
        if self.replica().election().leads_by_promises(boot_ms()) {
            Duration::ZERO
        } else {
            REGISTER_PATIENCE
        }
    }

    /// Makes this state durable in the folders of all masters that could take over, and in this one's. It may be shown when
    /// this succeeds.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) async fn copy(
        &self,
        state: StateNumber,
        bytes: &Arc<Vec<u8>>,
    ) -> Result<(), String> {
        let (register, calls) = {
            let replica = self.replica();
            (replica.register(), replica.ask_copies(boot_ms()))
        };
        let calls = calls.ok_or("not all masters that could take over are known")?;
        let register = register.ok_or("the register was never read")?;
        let mut missing = None;
        let mut sent = JoinSet::new();
        for call in calls {
            let bytes = bytes.clone();
            sent.spawn(async move {
                let answer = send_copy(&call, state.number, bytes.to_vec(), COPY_TIMEOUT).await;
                (call, answer)
            });
        }
        let own = async {
            let kept = self.copies.keep(register, state, bytes.clone()).await;
            if kept.is_ok() {
                self.replica().copied_own(state);
            }
            kept
        };
        let others = async {
            while let Some(Ok((call, answer))) = sent.join_next().await {
                match answer {
                    Ok(()) => self.replica().copied(boot_ms(), &call, state.number),
                    Err(status) => {
                        missing = Some(format!("{}: {}", call.address, status.message()));
                    }
                }
            }
        };
        let (kept, ()) = tokio::join!(own, others);
        match kept {
            Ok(()) => {}
            Err(CopyRefusal::Refused) => return Err("the folder has a later leader's".into()),
            Err(CopyRefusal::Failed(error)) => return Err(error),
        }
        if self.replica().show_copied(boot_ms(), state) {
            return Ok(());
        }
        Err(missing.unwrap_or_else(|| "this master's right has ended".into()))
    }

    /// The register has this state.
    pub(crate) fn stored(&self, state: StateNumber) {
        self.replica().stored(state);
    }

    /// Waits until this leader may swap the state of its term.
    pub(crate) async fn may_store_state(&self) {
        while !self.replica().may_store_state(boot_ms()) {
            tokio::time::sleep(self.poll()).await;
        }
    }

    /// The copy in this master's folder, of the register in which it leads.
    pub(crate) async fn own_copy(
        &self,
    ) -> Result<Option<(StateNumber, Vec<u8>)>, percolator_server::Error> {
        let register = self.replica().register();
        match register {
            Some(register) => self.copies.load(register).await,
            None => pending().await,
        }
    }
}
