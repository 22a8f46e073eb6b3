//! How one of several masters starts: from its registers, and from what its folder keeps.

use std::net::SocketAddr;
use std::sync::Arc;

use percolator_protocol::election::Member;
use percolator_server::promises::PromiseFolder;
use percolator_server::{Folder, Incarnation, RegisterLocation, advertised, folder};

use crate::copies::CopyFile;
use crate::error::Error;
use crate::leadership::{NetworkHost, Replica};
use crate::metrics::Metrics;
use crate::server::Options;
use crate::startup::{self, StateLocation};

/// One of several masters that is ready to take part.
pub(crate) struct JoinedMaster {
    /// This start of it.
    pub(crate) process: Incarnation,
    /// What its folder keeps of promises.
    pub(crate) promises: Arc<PromiseFolder>,
    /// The register of the state is still to be read.
    pub(crate) begins_late: bool,
}

impl JoinedMaster {
    /// Waits until the register of the state can be read, unless this master has taken part before: then the leader may need
    /// its promises before that.
    ///
    /// # Errors
    /// Of the folder, the registers and the state.
    pub(crate) async fn open(
        register: &RegisterLocation,
        options: &Options,
        folder: &Arc<Folder>,
        address: SocketAddr,
        metrics: Arc<Metrics>,
    ) -> Result<(StateLocation, Arc<Replica>, Self), Error> {
        let (promises, record) = PromiseFolder::open(folder)?;
        let begins_late = record.register != 0;
        let state = StateLocation::shared(register, !begins_late)?;
        if !begins_late {
            startup::begin_shared_state(&state, options, folder).await?;
        }
        let process = Incarnation::begin(folder.path(), folder::LOCK);
        let start = (
            member(options, address, &process, record.replica)?,
            process.replaces.clone(),
        );
        let leadership = register.open(startup::LEADERSHIP, !begins_late)?;
        let leadership = (leadership, register.timing());
        let host = NetworkHost::new(&options.server, CopyFile::open(folder)?, metrics);
        let candidate = Arc::new(Replica::new(host, start, leadership, record));
        let joined = Self {
            process,
            promises: Arc::new(promises),
            begins_late,
        };
        Ok((state, candidate, joined))
    }
}

/// This start of one of several masters, as the others know it.
fn member(
    options: &Options,
    address: SocketAddr,
    process: &Incarnation,
    replica: u64,
) -> Result<Member, Error> {
    if options.advertise.is_none() && address.ip().is_unspecified() {
        return Err(Error::AdvertiseMissing { address });
    }
    let address = advertised(options.advertise.as_deref(), address)?;
    let member = Member {
        name: options.server.clone(),
        address,
        incarnation: process.incarnation,
        replica,
    };
    member.fits().then_some(member).ok_or(Error::NameTooLong)
}
