//! The register of several oracles, and its first value.

use std::time::Duration;

use percolator_protocol::election::Leadership;
use percolator_protocol::types::Timestamp;
use percolator_register::{LoadError, Register, SwapError, VALUE_BYTES_MAX};
use percolator_server::{DurableValue as _, Folder, RegisterPart, SmallFile, load_when_available};

use crate::Error;
use crate::core::StartError;

/// The register that oracles share. A store that takes longer is asked again: a leader has to renew its right within two
/// seconds.
pub(crate) const LEADERSHIP: RegisterPart = RegisterPart {
    file: "oracle",
    object_suffix: "",
    timeout: Duration::from_secs(1),
    file_bytes_max: VALUE_BYTES_MAX,
};

/// A register that has a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BegunRegister {
    /// Which one it is, by its value.
    pub(crate) id: u64,
    /// What this oracle has granted at most while it was alone.
    pub(crate) limit: Timestamp,
}

/// Makes the register one that has a value. Refuses an empty register to an oracle that has granted timestamps with one, or has
/// taken part in `former_register`, if that isn't 0. A register that can't be read now is waited for.
pub(crate) async fn begin(
    register: &dyn Register,
    file: &SmallFile,
    folder: &Folder,
    incarnation: u64,
    former_register: u64,
) -> Result<BegunRegister, Error> {
    let stored = file.load()?;
    let limit = match stored.as_deref().map(<[u8; 8]>::try_from) {
        None => Timestamp::ZERO,
        Some(Ok(limit)) => Timestamp::from_u64(u64::from_le_bytes(limit)),
        Some(Err(_)) => {
            let bytes = stored.unwrap_or_default().len();
            let (path, cause) = (file.path().to_owned(), StartError::NoLimit { bytes });
            return Err(Error::NoLimit { path, cause });
        }
    };
    if load_when_available(register).await?.is_none() {
        let belongs_to = match folder.cluster_id() {
            Some(cluster_id) => Some(format!("cluster {cluster_id:?}")),
            None => (former_register != 0).then(|| format!("register {former_register}")),
        };
        if let (None, Some(belongs_to)) = (&stored, belongs_to) {
            return Err(Error::RegisterEmpty { belongs_to });
        }
        let first = Leadership::first(incarnation, limit);
        match register.swap(None, first.encode()).await {
            Ok(_) => {}
            Err(error @ (SwapError::Refused { .. } | SwapError::Damaged { .. })) => {
                return Err(Error::RegisterRefused(error));
            }
            // Another oracle was first, or a load shows whether this one was.
            Err(error) => tracing::debug!(%error, "the register's first value"),
        }
    }
    let found = load_when_available(register)
        .await?
        .ok_or(Error::RegisterNotBegun)?;
    let mut value = Leadership::decode(&found.value)?;
    if value.limit < limit {
        // No other oracle may begin a term below what this one has granted alone.
        if value.holder.is_some() {
            return Err(Error::RegisterBehind);
        }
        value.limit = limit;
        let raised = register.swap(Some(found.version), value.encode()).await;
        raised.map_err(|error| {
            tracing::warn!(%error, "the register does not take the limit of this oracle's folder");
            Error::RegisterNotBegun
        })?;
    }
    if stored.is_some() && value.limit >= limit {
        // From here on the register alone has the limit: an oracle that is started without it must not go on from here.
        if let Err(error) = std::fs::remove_file(file.path()) {
            tracing::warn!(%error, "the limit of before can't be removed");
        }
    }
    Ok(BegunRegister {
        id: value.register,
        limit,
    })
}

/// Whether the register can't be read now.
pub(crate) async fn is_away(register: &dyn Register) -> bool {
    let loaded = register.load().await;
    matches!(loaded, Err(LoadError::Unavailable { .. }))
}
