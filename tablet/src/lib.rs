//! The tablet server: latch rows, load, decide with `protocol`, write one batch, reply.
//!
//! [`core`] decides. [`runner`] sends responses to callers and groups to the disk, without socket, clock or thread. [`server`]
//! runs it on a network. No rule of the protocol is in this crate.

mod arriving;
mod asked;
mod cache;
mod changes;
mod clearing;
mod commands;
mod committer;
mod convert;
pub mod core;
mod decision;
mod endings;
mod garbage;
pub mod index;
mod lapse;
mod latches;
mod leaving;
mod limits;
mod load;
mod locks;
mod marks;
mod meter;
mod metrics;
pub mod mover;
mod moves;
mod notify;
mod observed;
mod options;
mod outbox;
mod pace;
mod pages;
mod peers;
mod places;
mod points;
mod prewrite;
mod probe;
pub mod program;
mod progress;
mod rates;
mod readers;
mod reads;
mod recent;
mod records;
mod resolution;
mod resolve;
pub mod resolver;
pub mod runner;
mod scan_part;
pub mod server;
mod service;
mod sizes;
mod state;
mod store;
mod stored;
mod tablets;
mod trace;
mod verify;
mod wait_queue;
mod work;

use percolator_protocol::lease::NotLeased;
use percolator_protocol::safe_point::TooOld;
use percolator_protocol::types::{DecodeError, Timestamp};
use percolator_wire::Malformed;

pub use self::limits::{Amount, Limits, Usage};
pub use self::options::Options;
pub use self::peers::{
    ClosedTablet, MoveCall, MoveRequest, MoveResponse, MovedEntry, PullRequest, PullResponse,
    ServerIncarnation, ServerLocation, TabletChunk, TakeOutcome, TakeRequest, Unanswered,
};
pub use self::server::Server;
pub use self::tablets::GcSettingsCopy;

use self::peers::NotServed;

/// Why the server can't start, or has stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] percolator_engine::Error),
    /// The engine's content is damaged, or is of another version.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A tablet's record can't be read.
    #[error("a tablet's record can't be read: {detail}")]
    TabletRecord {
        /// What is wrong with it.
        detail: String,
    },
    /// How far the server is can't be read.
    #[error("how far the server is has {bytes} bytes, not 16: the engine's content is damaged")]
    Reached {
        /// How many it has.
        bytes: usize,
    },
    /// The barrier and the safe point can't be read.
    #[error("the points of collection have {bytes} bytes, not 16: the engine's content is damaged")]
    Points {
        /// How many they have.
        bytes: usize,
    },
    /// An entry of the index of garbage can't be read.
    #[error("the index of garbage has an entry {} that can't be read: the engine's content is damaged", percolator_protocol::types::escape(.key))]
    GarbageEntry {
        /// Its key.
        key: Vec<u8>,
    },
    /// A key that this program doesn't write.
    #[error("the key {} can't be read: {detail}", percolator_protocol::types::escape(.key))]
    MetaKey {
        /// The key.
        key: Vec<u8>,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// A write record points at a long value that isn't there.
    #[error("the long value written at {start_ts} is missing: the engine's content is damaged")]
    ValueMissing {
        /// The transaction that wrote it.
        start_ts: Timestamp,
    },
    /// Metrics can't be shown.
    #[error(transparent)]
    Metrics(#[from] percolator_telemetry::endpoint::Error),
    /// Traces can't be sent.
    #[error(transparent)]
    Traces(#[from] percolator_telemetry::otlp::Error),
    /// Listening, the folder, or the master's refusal.
    #[error(transparent)]
    Server(#[from] percolator_server::Error),
    /// The master's address.
    #[error("the master can't be asked: {0}")]
    Master(percolator_client::Error),
    /// A write was lost, or what was written can't be read; so the server stopped.
    #[error(
        "stopped, because its disk failed: {0}; start the server again: where it stops again, its store is damaged \
         (docs/correctness.md, by hand)"
    )]
    Stopped(String),
}

/// Why a request was not carried out.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    NotServed(NotServed),
    /// The request is addressed to another server, or another incarnation.
    OtherServer {
        meant: Option<ServerIncarnation>,
        this: ServerIncarnation,
    },
    TooOld(TooOld),
    NotLeased(NotLeased),
    Invalid(String),
    Busy(String),
    Engine {
        message: String,
        unknown: bool,
        fatal: bool,
        damaged: bool,
    },
}

/// Why the server has stopped.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) damaged: bool,
}

impl Refusal {
    /// The server has stopped, for this reason.
    pub(crate) fn failed(failure: Failure) -> Self {
        Self::Engine {
            message: failure.message,
            unknown: false,
            fatal: true,
            damaged: failure.damaged,
        }
    }

    /// Why the server has to stop, if it has to.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self {
            Self::Engine {
                message,
                fatal: true,
                damaged,
                ..
            } => Some(Failure {
                message: message.clone(),
                damaged: *damaged,
            }),
            _ => None,
        }
    }
}

impl Error {
    /// Whether what lies on the device is not what was written to it.
    fn is_damage(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_damage(),
            Self::Decode(_)
            | Self::TabletRecord { .. }
            | Self::Reached { .. }
            | Self::Points { .. }
            | Self::GarbageEntry { .. }
            | Self::MetaKey { .. }
            | Self::ValueMissing { .. } => true,
            Self::Metrics(_)
            | Self::Traces(_)
            | Self::Server(_)
            | Self::Master(_)
            | Self::Stopped(_) => false,
        }
    }
}

impl From<NotServed> for Refusal {
    fn from(not_served: NotServed) -> Self {
        Self::NotServed(not_served)
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::Invalid(malformed.to_string())
    }
}

impl From<TooOld> for Refusal {
    fn from(too_old: TooOld) -> Self {
        Self::TooOld(too_old)
    }
}

impl From<NotLeased> for Refusal {
    fn from(not_leased: NotLeased) -> Self {
        Self::NotLeased(not_leased)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        use percolator_engine::Error as E;
        Self::Engine {
            message: error.to_string(),
            unknown: false,
            // The engine has stopped, for example by a checkpoint in the background. Or it can't read what it has written:
            // other data may be damaged, too.
            fatal: error.is_damage()
                || matches!(
                    error,
                    Error::Engine(
                        E::Poisoned { .. }
                            | E::DurableButStopped { .. }
                            | E::Closed
                            | E::Store { .. }
                            | E::Io { .. }
                    )
                ),
            damaged: error.is_damage(),
        }
    }
}
