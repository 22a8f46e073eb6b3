//! What every server process shares: listening, signals, logs, heartbeats, small durable facts.
//!
//! No rules live here: it must not know what a timestamp, a lock or a tablet means.

mod beside;
mod clock;
mod error;
pub mod folder;
mod health;
pub mod heartbeat;
mod incarnation;
pub mod leadership;
mod listen;
pub mod promises;
mod recovering;
mod register_location;
mod runtime;
mod schedule;
mod serve;
pub mod signals;
pub mod small_file;
pub mod stall;

pub use beside::Beside;
pub use clock::boot_time;
pub use error::{BoxError, Error};
pub use folder::Folder;
pub use health::Probe;
pub use incarnation::Incarnation;
pub use listen::{advertised, announce, listen};
pub use percolator_telemetry::logs;
pub use recovering::while_recovering;
pub use register_location::{RegisterLocation, RegisterPart, load_when_available};
pub use runtime::{
    exit_code, many_connections, open_files_max, run_on_current_thread, small_pages,
};
pub use schedule::Schedule;
pub use serve::{GrpcService, serve, serve_also_http1, serve_when};
pub use small_file::{DurableValue, SmallFile};
pub use stall::{StallWatch, stall_max};
