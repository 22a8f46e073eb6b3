//! Promises between the oracles of one register: by these the leader goes on while the register is away.

use percolator_protocol::election::{
    CopyRequest, PromiseCall, PromiseRecord, PromiseRequest, PromiseRound,
};
use percolator_server::promises::{
    CopyRefusal, IntroducedStandby, Introduction, LeaderRight, Promiser,
};

use crate::service::Shared;

impl Promiser for Shared {
    const ROLE: &'static str = "oracle";
    /// A limit is part of a promise.
    const COPY_BYTES_MAX: usize = 0;

    fn record(&self) -> Option<PromiseRecord> {
        self.replica(|replica, _| replica.record())
    }

    fn ask_promises(&self) -> Option<PromiseRound> {
        let round = self.replica(|replica, now| replica.ask_promises(now));
        round.flatten()
    }

    fn kept(&self, record: &PromiseRecord) {
        self.replica(|replica, now| replica.kept(now, record));
        self.look_again();
    }

    fn promised(&self, call: &PromiseCall) {
        self.replica(|replica, now| replica.promised(now, call));
        self.look_again();
    }

    fn promise(&self, request: &PromiseRequest) -> Option<PromiseRecord> {
        let promised = self.replica(|replica, now| replica.promise(now, request));
        promised.flatten()
    }

    fn introduction(&self) -> Option<Introduction> {
        let introduction = self.replica(|replica, _| {
            Some(Introduction {
                leader: replica.introduces_to()?.to_owned(),
                standby: IntroducedStandby::new(replica.register()?, replica.member()),
            })
        });
        introduction.flatten()
    }

    fn introduced(&self, standby: &IntroducedStandby) {
        self.replica(|replica, now| {
            if replica.register() == Some(standby.register) && !standby.is_leaving {
                replica.introduced(now, &standby.peer);
            }
        });
    }

    fn right(&self) -> LeaderRight {
        LeaderRight {
            leads: self.leads_term() != 0,
            is_by_promises: Self::right(self).is_by_promises,
        }
    }

    async fn term_begun(&self) {
        Self::term_begun(self).await;
    }

    fn count_promise(&self, result: &'static str) {
        self.metrics.promise(result);
    }

    async fn keep_copy(&self, _: &CopyRequest, _: Vec<u8>) -> Result<(), CopyRefusal> {
        Err(CopyRefusal::Refused)
    }
}
