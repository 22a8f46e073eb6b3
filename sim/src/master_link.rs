//! A process's way to the master that leads, of several: the shipped choice between them, and around it what
//! `client/src/network.rs` and `server/src/heartbeat.rs` do over a network.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use percolator_client::transport::MasterError;
use percolator_wire::MasterAddresses;

use crate::messages::{Answer, Ask};
use crate::servers::master;
use crate::world::{NodeId, World};

/// The pause of a client when all masters were asked, and none leads.
const NO_LEADER_PAUSE: Duration = Duration::from_millis(50);
/// A client asks one after the other for so long.
const ASKED_MAX: Duration = Duration::from_secs(5);

/// The masters that a process knows.
pub struct MasterLink {
    addresses: Mutex<MasterAddresses>,
    /// The process's clock is counted from here.
    epoch: Instant,
}

/// Why a request has no answer.
enum NoAnswer {
    /// It isn't the leader. Whether it has named another one, which is asked next.
    NotLeader(bool),
    /// None came in time, or the way was lost.
    Silent(String),
}

impl MasterLink {
    /// Of a process of this world; none if the cluster has only one master.
    pub fn new(world: &Arc<World>) -> Option<Self> {
        let network = world.network.lock();
        let all = (0..3).map(master::address);
        let all: Vec<String> = all.filter(|it| network.at(it).is_some()).collect();
        if all.len() < 2 {
            return None;
        }
        Some(Self {
            addresses: Mutex::new(all.join(",").parse().ok()?),
            epoch: Instant::now(),
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.addresses.lock().count()
    }

    async fn attempt(
        &self,
        world: &Arc<World>,
        from: NodeId,
        ask: Ask,
        timeout: Duration,
    ) -> Result<Answer, NoAnswer> {
        let now = || self.epoch + world.mono(from);
        let (since, address) = (now(), self.addresses.lock().current().to_owned());
        let to = world.network.lock().at(&address);
        let asked = match to {
            Some(to) => world.call(from, to, ask, timeout).await,
            None => {
                self.addresses.lock().no_answer(&address, since, now());
                return Err(NoAnswer::Silent(format!("nobody listens at {address}")));
            }
        };
        match asked {
            Ok(Answer::NotLeader(leader)) => {
                let mut addresses = self.addresses.lock();
                let follows = addresses.not_leading(&address, leader.as_ref(), now());
                Err(NoAnswer::NotLeader(follows))
            }
            Ok(answer) => Ok(answer),
            Err(lost) => {
                self.addresses.lock().no_answer(&address, since, now());
                Err(NoAnswer::Silent(lost.why))
            }
        }
    }

    /// Asks as a client does: one after the other, until one answers. `matters`: what is asked does something else when it
    /// is done twice, so that it isn't asked again if it may have been done.
    pub(crate) async fn ask(
        &self,
        world: &Arc<World>,
        from: NodeId,
        ask: Ask,
        timeout: Duration,
        matters: bool,
    ) -> Result<Answer, MasterError> {
        let (began, mut asked) = (world.mono(from), 0);
        loop {
            let why = match self.attempt(world, from, ask.clone(), timeout).await {
                Ok(Answer::Refused(why)) => return Err(why),
                Ok(answer) => return Ok(answer),
                Err(NoAnswer::Silent(why)) if matters => {
                    return Err(MasterError::Unavailable(why));
                }
                Err(NoAnswer::Silent(why)) => why,
                Err(NoAnswer::NotLeader(_)) => "no master leads".to_owned(),
            };
            let masters = self.count();
            if world.mono(from).saturating_sub(began) >= ASKED_MAX {
                return Err(MasterError::Unavailable(why));
            }
            asked += 1;
            if asked % (masters + 1) == 0 {
                world.sleep_on(from, NO_LEADER_PAUSE).await;
            }
        }
    }

    /// Asks as a server with a heartbeat does: each master once, and the one that is named. None: none has answered.
    pub(crate) async fn heartbeat(
        &self,
        world: &Arc<World>,
        from: NodeId,
        beat: Ask,
        timeout: Duration,
    ) -> Option<Answer> {
        let mut asked = 0;
        loop {
            let follows = match self.attempt(world, from, beat.clone(), timeout).await {
                Ok(answer) => return Some(answer),
                Err(NoAnswer::NotLeader(follows)) => follows,
                Err(NoAnswer::Silent(_)) => false,
            };
            asked += 1;
            if asked >= self.count() + usize::from(follows) {
                return None;
            }
        }
    }
}
