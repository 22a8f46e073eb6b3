//! What processes say to each other.

use std::sync::Arc;

use percolator_client::transport::MasterError;
use percolator_gc_master::Done;
use percolator_protocol::election::{CopyRequest, NamedLeader, PromiseRequest};
use percolator_protocol::oracle::Granted;
use percolator_server::promises::IntroducedReplica;
use percolator_tablet::runner::MasterCommand;
use percolator_wire::v1;

use crate::servers::register::{RegisterAnswer, RegisterRequest};
use crate::world::NodeId;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The process that asked.
    pub node: NodeId,
    /// Which of its calls.
    pub call: u64,
}

/// A question.
#[derive(Clone, Debug)]
pub enum Ask {
    /// To a tablet server.
    Tablet(v1::Request),
    /// To the oracle: so many timestamps.
    Timestamps(u32),
    /// To the master.
    Directory,
    /// To the master.
    Locate(v1::LocateRequest),
    /// To the master.
    CreateTable(v1::CreateTableRequest),
    /// To the master.
    DeleteTable(v1::DeleteTableRequest),
    /// To the master.
    SplitTable(v1::SplitTableRequest),
    /// To the master.
    MergeTable(v1::MergeTableRequest),
    /// To the master.
    MoveTablet(v1::MoveTabletRequest),
    /// To the master.
    DrainServers(v1::DrainServersRequest),
    /// To the master.
    SetGc(v1::SetGcRequest),
    /// To the master.
    Session(v1::SessionRequest),
    /// To the master.
    Heartbeat(Box<v1::HeartbeatRequest>),
    /// The master's, to a tablet server.
    Command(MasterCommand),
    /// Of a leader, to another replica of its register.
    Promise(PromiseRequest),
    /// Of a leading master, to another one: to promise, and to keep a copy of a state.
    KeepCopy {
        /// Which one.
        request: CopyRequest,
        /// The state.
        state: Arc<Vec<u8>>,
    },
    /// Of a standby to the leader of its register, or of a replica that ends.
    Introduce(IntroducedReplica),
    /// Of a replica, to the store of the registers.
    Register {
        /// Which one.
        register: &'static str,
        /// What is asked.
        request: RegisterRequest,
    },
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A tablet server's.
    Tablet(v1::Response),
    /// The oracle's.
    Timestamps(Granted),
    /// The master's.
    Directory(v1::DirectoryResponse),
    /// The master's.
    Located(v1::LocateResponse),
    /// The master's.
    TableCreated(v1::CreateTableResponse),
    /// The master's.
    TableDeleted(v1::DeleteTableResponse),
    /// The master's.
    TableSplit(v1::SplitTableResponse),
    /// The master's.
    TableMerged(v1::MergeTableResponse),
    /// The master's.
    TabletMoved(v1::MoveTabletResponse),
    /// The master's.
    ServersDrained(Box<v1::DrainServersResponse>),
    /// The master's.
    GcSet(v1::SetGcResponse),
    /// The master's.
    Session(v1::SessionResponse),
    /// The master's, to a heartbeat.
    Heartbeat(v1::HeartbeatResponse),
    /// A command was carried out; or not, and why.
    Done(Result<Done, String>),
    /// The master refuses.
    Refused(MasterError),
    /// A standby's: the leader's address, if it knows it.
    NotLeader(Option<NamedLeader>),
    /// A replica's, to another one of its register: whether it has promised.
    Promised(bool),
    /// A register's.
    Register(RegisterAnswer),
}
