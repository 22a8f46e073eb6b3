//! How one of several oracles starts: from its register, if that can be read, and from what its folder keeps.

use std::sync::Arc;

use percolator_protocol::election::{Member, OracleReplica, Timing};
use percolator_protocol::oracle::Now;
use percolator_protocol::types::Timestamp;
use percolator_register::Register;
use percolator_server::promises::PromiseFolder;
use percolator_server::{Folder, Incarnation, RegisterLocation, SmallFile};

use crate::leadership::LateBeginning;
use crate::register;
use crate::{Error, Options};

/// One of several oracles that is ready to take part.
pub(crate) struct JoinedReplica {
    pub(crate) replica: OracleReplica,
    pub(crate) timing: Timing,
    pub(crate) promises: Arc<PromiseFolder>,
    pub(crate) register: Arc<dyn Register>,
    /// Which register that is, by its value.
    pub(crate) register_id: u64,
    /// If the register can't be read now.
    pub(crate) late: Option<LateBeginning>,
}

impl JoinedReplica {
    /// Opens the register, and waits until it can be read, unless the folder knows it: then the leader may need promises
    /// before that.
    ///
    /// # Errors
    /// The folder or the register is damaged; the register is empty and must not be.
    pub(crate) async fn open(
        location: &RegisterLocation,
        options: &Options,
        (folder, limit): (&Arc<Folder>, SmallFile),
        (process, address): (&Incarnation, &str),
        now: Now,
    ) -> Result<Self, Error> {
        let (promises, record) = PromiseFolder::open(folder)?;
        let former = record.register;
        let register = location.open(register::LEADERSHIP, former == 0)?;
        let incarnation = process.incarnation;
        let (mut floor, mut late, mut register_id) = (Timestamp::ZERO, None, former);
        if former != 0 && register::is_away(&*register).await {
            late = Some(LateBeginning {
                file: limit,
                folder: folder.clone(),
                incarnation,
                register_id,
            });
        } else {
            let begun = register::begin(&*register, &limit, folder, incarnation, former).await?;
            (floor, register_id) = (begun.limit, begun.id);
        }
        let member = Member {
            name: options.server.clone(),
            address: address.to_owned(),
            incarnation,
            replica: record.replica,
        };
        let (dead, timing) = (process.replaces.clone(), location.timing());
        let mut replica = OracleReplica::new(member, dead, timing, options.settings);
        replica.raise(floor);
        replica.restore(now, record);
        Ok(Self {
            replica,
            timing,
            promises: Arc::new(promises),
            register,
            register_id,
            late,
        })
    }
}
