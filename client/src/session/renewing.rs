//! Renewing a client's lease at the master, and giving it back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::TooOld;
use percolator_protocol::types::Timestamp;
use tokio::sync::watch;

use super::{CONFIRMED_WITHIN, GcLockGuard, GcSession, LeaseStep, LeaseTerm};
use crate::collection::{LeaseRequest, TxnOwner};
use crate::router::{Router, World};
use crate::trace::Step;
use crate::transport::Transport;

/// While the master hasn't said how long its leases are, or is away.
const PAUSE: Duration = Duration::from_millis(500);
/// While a transaction is just beginning, or where the floor was below the barrier.
const SOON: Duration = Duration::from_millis(20);
/// Without a lease nothing is to be renewed: anyone who begins a transaction says so.
const RESTS: Duration = Duration::from_secs(60);
/// A lease is renewed so many times before it would end.
const RENEWALS: u32 = 3;
/// The variable with the user's name for a program, for people to see.
const LABEL: &str = "PERCOLATOR_LABEL";

impl Router {
    /// [`GcSession::confirm`].
    pub(crate) async fn confirm(&self, start_ts: Timestamp) -> Result<(), TooOld> {
        let step = self.step("safe_point_check");
        let trace = step.as_ref().and_then(Step::context);
        let session = &self.world.session;
        session
            .confirm(start_ts, &*self.world.transport, trace)
            .await
    }

    /// Where no transaction is open any more, the lease is given back now, and doesn't hold what has ended until it ends
    /// itself. Waits for that, for a while.
    pub(crate) async fn let_go(&self) {
        let (session, transport) = (&self.world.session, &*self.world.transport);
        let given_back = async {
            // What was under way already was asked for before.
            loop {
                let attempted = session.attempted.notified();
                if !session.lets_go() {
                    return;
                }
                session.wanted.notify_one();
                attempted.await;
                if session.state.lock().away {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = given_back => {}
            () = transport.sleep(CONFIRMED_WITHIN) => {}
        }
    }

    /// Whatever is given a timestamp from now on, covered by the client's lease.
    pub(crate) fn hold(&self) -> GcLockGuard {
        let (held, first) = self.world.session.hold();
        if first {
            let step = self.step("lease");
            self.world
                .session
                .renewed_for(step.as_ref().and_then(Step::context));
            let client = self.downgrade();
            let ended = self.world.ended.subscribe();
            let keep = move |transport| renew(client, ended, transport).boxed();
            if let Err(keep) = self.world.transport.spawn_apart(Box::new(keep)) {
                let transport = self.world.transport.clone();
                self.world.transport.spawn(keep(transport));
            }
        }
        held
    }
}

/// Renews the lease until the client is gone.
async fn renew(world: Weak<World>, mut ended: watch::Receiver<()>, transport: Arc<dyn Transport>) {
    let mut session = transport.random();
    let owner = owner();
    while let Some(session_of) = world.upgrade().map(|world| world.session.clone()) {
        let pause = match session_of.next() {
            LeaseStep::Renew => session_of.renew_once(session, &owner, &*transport).await,
            LeaseStep::Rest => RESTS,
            LeaseStep::LetGo => {
                end(session, &*transport).await;
                // Should that arrive late, it doesn't end what is held by then.
                session = transport.random();
                session_of.attempted.notify_waiters();
                RESTS
            }
        };
        tokio::select! {
            biased;
            _ = ended.changed() => {}
            () = session_of.wanted.notified() => {}
            () = transport.sleep(pause.max(Duration::from_millis(1))) => {}
        }
    }
    end(session, &*transport).await;
}

/// Gives a lease back.
async fn end(session: u64, transport: &dyn Transport) {
    let last = LeaseRequest::give_back(session);
    // If the request is lost, the lease ends by itself.
    let _ = transport.session(last.into(), None).await;
}

impl GcSession {
    /// How long to wait before the next time.
    async fn renew_once(
        &self,
        session: u64,
        owner: &TxnOwner,
        transport: &dyn Transport,
    ) -> Duration {
        let trace = self.state.lock().trace.take();
        let Ok(now) = transport.timestamp(trace).await else {
            self.not_renewed();
            return PAUSE;
        };
        let Some(floor) = self.floor(now) else {
            return SOON;
        };
        let (transactions, unnamed) = self.oldest(now);
        let request = LeaseRequest {
            session,
            owner: Some(owner.clone()),
            floor: if mutants::on(Mutant::FloorTooHighByOne) {
                floor.next()
            } else {
                floor
            },
            transactions,
            unnamed,
        };
        self.asks(floor);
        let sent = transport.lease_clock();
        let Ok(response) = transport.session(request.into(), trace).await else {
            self.not_renewed();
            return PAUSE;
        };
        let barrier = Timestamp::from_u64(response.barrier);
        let lease = Duration::from_millis(response.lease_ms.into());
        let from = if mutants::on(Mutant::LeaseFromTheAnswer) {
            transport.lease_clock()
        } else {
            sent
        };
        let granted = LeaseTerm {
            floor,
            until: from + lease,
        };
        self.renewed(barrier, granted);
        if barrier > floor {
            // What it asks for is refused anyway, and held back by its asking.
            SOON
        } else {
            lease / RENEWALS
        }
    }
}

/// This process, for people to read.
fn owner() -> TxnOwner {
    let application = std::env::current_exe().ok();
    let application = application
        .as_deref()
        .and_then(std::path::Path::file_name)
        .map(|name| name.to_string_lossy().into_owned());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    TxnOwner {
        host: host.trim().to_owned(),
        process: std::process::id(),
        application: application.unwrap_or_default(),
        label: std::env::var(LABEL).unwrap_or_default(),
    }
}
