//! The master: the directory of tables, tablets and servers.
//!
//! [`Directory`] is the pure core; [`Server`] runs it over gRPC with its state in a register, alone or as the
//! leader of several. The master knows where tablets are because their owners report them: that is soft state. What no
//! owner can report is durable.
//!
//! It also decides how far garbage collection may go: it keeps the clients' gc-locks, and the two points
//! of `protocol::safe_point`.

mod amounts;
mod balance_plan;
mod balancer;
mod beats;
mod candidate;
mod collection;
mod command_sender;
mod commands;
mod convert;
mod copies;
mod core;
mod cuts;
mod drains;
mod driver;
mod durability;
mod error;
mod events;
mod facts;
mod fencing;
mod holds;
mod ids;
mod joining;
mod leadership;
mod locate;
mod lost;
mod measured;
mod members;
mod merges;
mod metrics;
mod moves;
mod names;
mod oracles;
mod pending;
mod placements;
pub mod program;
mod progress;
mod proxies;
mod rebuild;
mod rebuild_command;
mod refusal;
mod reports;
mod requests;
mod runner;
mod runner_host;
mod server;
mod servers_by_name;
mod service;
mod serving;
mod sessions;
mod settings;
mod standbys;
mod startup;
mod state;
mod stored;
mod tables;
mod tables_by_id;

pub use crate::core::{Directory, DirectoryStats, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, Settings};
pub use balancer::{SPLIT_BYTES, SPLIT_LOAD};
pub use candidate::{Candidate, Host, NotLeading};
pub use command_sender::COMMAND_TIMEOUT;
pub use convert::{directory as directory_response, gc_status, server as server_info};
pub use cuts::{Merging, Splitting};
pub use durability::Closed;
pub use error::Error;
pub use events::{
    Action, Command, Deletion, Departed, Done, Effects, Heartbeat, HeartbeatReply, Note, Start,
};
pub use fencing::{LEASE, Leased};
pub use locate::locate;
pub use moves::Moving;
pub use names::{CUT_BYTES_MAX, CUTS_MAX, NAME_BYTES_MAX};
pub use pending::{Creation, Pending, Removal};
pub use placements::Placements;
pub use proxies::ProxyReport;
pub use rebuild_command::{RebuildCommand, RebuildSource, Rebuilt, RebuiltTableRecord};
pub use refusal::Refusal;
pub use reports::{Amount, Arrival, Collected, LockObstacle, TabletCollected, Whereabouts};
pub use requests::{Awaited, drain_servers, move_tablet, session};
pub use runner::{RequestError, Runner, RunnerHost};
pub use server::{Options, Server};
pub use servers_by_name::ServersByName;
pub use serving::{Serving, WaitingRequest};
pub use sessions::{GcLock, GcLocks, Owner, Renewal, Renewed};
pub use settings::{
    Manifest, ManifestError, RETENTION, RETENTION_MAX, RETENTION_MIN, SettingsChange,
    StoredSettings,
};
pub use startup::drained_servers;
pub use state::{
    DirectoryState, Drain, Gc, Placement, Role, Server as KnownServer, StateError, TableRecord,
    TableState,
};
pub use stored::{PersistError, StateStore, StoreClock, StoreWaits, StoredState};
pub use tables::STATE_BYTES_MAX;
pub use tables_by_id::TablesById;
