//! A client's way to the oracle that leads, of several: the shipped choice between them, and around it what
//! `client/src/oracle/driver.rs` does over a network.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_client::oracle::{KnownPlaces, places};
use percolator_client::transport::{Lost, MasterError};
use percolator_client::{Cluster, Timestamp};

use crate::messages::{Answer, Ask};
use crate::servers::oracle;
use crate::transport::SimTransport;
use crate::world::World;

/// After an attempt that failed the first pause, then twice as long each time, up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// The oracles that a client knows.
pub struct OracleLink(Mutex<KnownPlaces>);

impl OracleLink {
    /// Of a client that knows none yet; none if the cluster has only one.
    pub fn new(world: &Arc<World>) -> Option<Self> {
        let second = world.network.lock().at(&oracle::address("tso-1"));
        second.map(|_| Self(Mutex::default()))
    }

    /// Asks until there is an answer, for as long as the transport waits for one.
    pub(crate) async fn timestamp(&self, transport: &SimTransport) -> Result<Timestamp, Lost> {
        let (world, node) = (&transport.world, transport.node);
        let deadline = world.mono(node) + transport.timeout;
        let mut retry = RETRY_FIRST;
        loop {
            let why = match self.attempt(transport).await {
                Ok(ts) => return Ok(ts),
                Err(why) => why,
            };
            if world.mono(node) + retry >= deadline {
                return Err(Lost::unknown(why));
            }
            world.sleep_on(node, retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    async fn attempt(&self, transport: &SimTransport) -> Result<Timestamp, String> {
        if self.0.lock().is_empty() {
            self.read_directory(transport).await?;
        }
        let (place, limit) = {
            let known = self.0.lock();
            (known.current(), known.timeout())
        };
        let address = place.ok_or("no oracle is known")?.address;
        let asked = Asked {
            link: self,
            address: &address,
            outcome: None,
        };
        let to = transport.at(&address).map_err(|lost| lost.why)?;
        let timeout = limit.min(transport.timeout);
        match transport.timestamp_of(to, timeout).await {
            Ok(Ok(ts)) => {
                asked.ended(Outcome::Granted);
                Ok(ts)
            }
            Ok(Err(leader)) => {
                asked.ended(Outcome::Failed(leader));
                Err(format!("{address} doesn't lead"))
            }
            Err(lost) => Err(lost.why),
        }
    }

    async fn read_directory(&self, transport: &SimTransport) -> Result<(), String> {
        let limit = self.0.lock().directory_timeout();
        let timeout = limit.min(transport.timeout);
        let asked = transport.ask_master_within(Ask::Directory, timeout).await;
        let found = match asked {
            Ok(Answer::Directory(directory)) => match Cluster::try_from(directory) {
                Ok(cluster) => places(&cluster)
                    .ok_or_else(|| "no oracle has reported to the master yet".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            Ok(_) => Err("another question was answered".to_owned()),
            Err(
                MasterError::Unavailable(why)
                | MasterError::Invalid(why)
                | MasterError::AlreadyExists(why)
                | MasterError::NotFound(why),
            ) => Err(why),
            Err(MasterError::Replaced(replaced)) => Err(replaced.to_string()),
        };
        let mut known = self.0.lock();
        match found {
            Ok(place) => known.learn(place),
            Err(why) if !known.recall() => return Err(why),
            Err(_) => {}
        }
        Ok(())
    }
}

/// How a request to an oracle ended.
enum Outcome {
    Granted,
    /// It doesn't lead, and names who does, if it knows it.
    Failed(Option<String>),
}

/// A request to an oracle. One that nobody waits for any more has failed.
struct Asked<'a> {
    link: &'a OracleLink,
    address: &'a str,
    outcome: Option<Outcome>,
}

impl Asked<'_> {
    fn ended(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut known = self.link.0.lock();
        let is_current = known
            .current()
            .is_some_and(|place| place.address == self.address);
        // Otherwise another request has gone on already.
        if is_current {
            match self.outcome.take() {
                Some(Outcome::Granted) => known.granted(),
                Some(Outcome::Failed(leader)) => known.failed(leader),
                None => known.failed(None),
            }
        }
    }
}
