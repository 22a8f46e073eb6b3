//! What a master finds when it starts: its folder, and the registers of its state and of the masters' leadership.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use percolator_register::{FileRegister, Register};
use percolator_server::Folder;

use crate::core::Directory;
use crate::events::Start;
use crate::server::{Error, Options};
use crate::settings::Manifest;
use crate::state::{DirectoryState, StateError};
use crate::stored::{PersistError, StateStore, StoredState};

/// The register of the state of a master that is alone, in its folder.
const STATE: &str = "directory";
/// The register of the state of several masters, in the folder that they share.
const SHARED_STATE: &str = "master-state";
/// The register that says which of several masters leads, in the same folder.
const LEADERSHIP: &str = "master";
/// The extension of the first one once the shared register has it.
const ASIDE: &str = "moved";
/// More than the directory lets its state grow to. A register in a file takes that.
const STATE_BYTES_MAX: usize = 16 << 20;
/// A device that takes longer for the leadership is asked again: a leader has to renew its right within two seconds.
const LEADERSHIP_TIMEOUT: Duration = Duration::from_secs(1);
/// A device that takes longer for the state has stalled. The master ends when it has not answered a second time.
const STATE_TIMEOUT: Duration = Duration::from_secs(15);
/// The same for one of several masters: another one can lead meanwhile.
const SHARED_STATE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a register of the state that doesn't answer is asked again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The folder with the registers that several masters share, of which one leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterRegister(pub PathBuf);

impl FromStr for MasterRegister {
    type Err = String;

    /// As on the command line: `file:DIR`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("file", folder)) if !folder.is_empty() => Ok(Self(folder.into())),
            _ => Err(
                "a register is written file:DIR, as in file:/var/lib/percolator/register".into(),
            ),
        }
    }
}

/// A directory that was begun with the stored state.
pub(crate) struct Opened {
    pub(crate) directory: Directory,
    pub(crate) store: StateStore,
    /// In which term that state was written; 0: in none.
    pub(crate) stored_term: u64,
}

/// Where the state is.
pub(crate) struct StateLocation {
    register: Arc<dyn Register>,
    /// The register's file.
    pub(crate) file: PathBuf,
}

impl StateLocation {
    fn new(file: PathBuf, timeout: Duration) -> Self {
        let register = FileRegister::new(&file)
            .with_timeout(timeout)
            .with_value_bytes_max(STATE_BYTES_MAX);
        Self {
            register: Arc::new(register),
            file,
        }
    }

    fn unreadable(&self, cause: StateError) -> Error {
        Error::State {
            path: self.file.clone(),
            cause,
        }
    }

    /// Where the state of a master that was alone lies since a shared register has it.
    fn aside(&self) -> PathBuf {
        self.file.with_extension(ASIDE)
    }

    /// From now on the shared register alone has the state: a master that is started without it must not go on from here.
    fn set_aside(&self) {
        match std::fs::rename(&self.file, self.aside()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, "the state of before can't be set aside in this master's folder");
            }
            _ => {}
        }
    }

    /// Of a master that is alone.
    pub(crate) fn alone(folder: &Folder) -> Self {
        Self::new(folder.path().join(STATE), STATE_TIMEOUT)
    }

    /// Of several masters.
    pub(crate) fn shared(register: &MasterRegister) -> Self {
        Self::new(register.0.join(SHARED_STATE), SHARED_STATE_TIMEOUT)
    }

    /// Reads the state, and begins a directory with it. The state is not this master's yet: see [`StateStore::load`].
    pub(crate) async fn open(
        &self,
        term: u64,
        options: &Options,
        folder: &Folder,
    ) -> Result<Opened, Error> {
        let (store, stored) = StateStore::load(self.register.clone(), term, RETRY_MAX).await?;
        let stored_term = stored.as_ref().map_or(0, |stored| stored.term);
        let start = match stored {
            Some(StoredState { state, .. }) => Start::State(state),
            None if options.register.is_none() && self.aside().exists() => {
                return Err(Error::Moved { path: self.aside() });
            }
            None => match folder.cluster_id() {
                // Several masters have begun theirs before: see [`begin_shared_state`].
                None if options.new_cluster && options.register.is_none() => Start::NewCluster,
                cluster_id => Start::Rebuild { cluster_id },
            },
        };
        let mut directory = Directory::open(start, options.settings, rand::random());
        if let (Ok(directory), Some(path)) = (&mut directory, &options.manifest) {
            directory.take_manifest(read_manifest(path)?);
        }
        let directory = directory.map_err(|cause| self.unreadable(cause))?;
        Ok(Opened {
            directory,
            store,
            stored_term,
        })
    }
}

/// The register that says which of several masters leads.
pub(crate) fn leadership(register: &MasterRegister) -> Arc<dyn Register> {
    let register = FileRegister::new(register.0.join(LEADERSHIP));
    Arc::new(register.with_timeout(LEADERSHIP_TIMEOUT))
}

/// Sees to it that a shared register has the state that this master knows: that of its own folder, if it was alone until
/// now, or that of a new cluster. The register's own state is left as it is.
pub(crate) async fn begin_shared_state(
    shared: &StateLocation,
    options: &Options,
    folder: &Folder,
) -> Result<(), Error> {
    let own = StateLocation::alone(folder);
    let (_, own_state) = StateStore::load(own.register.clone(), 0, RETRY_MAX).await?;
    let own_state = own_state.map(|stored| stored.state);
    loop {
        let (mut store, found) = StateStore::load(shared.register.clone(), 0, RETRY_MAX).await?;
        if let Some(found) = found {
            if let Some(own_state) = &own_state {
                check_same_state(&own, own_state, shared, &found.state)?;
            }
            break;
        }
        let is_new = folder.cluster_id().is_none() && options.new_cluster;
        let state = match &own_state {
            Some(state) => Some(state.clone()),
            None if is_new => {
                let begun = Directory::open(Start::NewCluster, options.settings, rand::random());
                let mut begun = begun.map_err(|cause| shared.unreadable(cause))?;
                begun.take_effects().persist
            }
            None => None,
        };
        let Some(state) = state else { return Ok(()) };
        match store.store(0, &state).await {
            Ok(()) => break,
            // Another master was first.
            Err(PersistError::Superseded) => {}
            Err(error) => return Err(error.into()),
        }
    }
    own.set_aside();
    Ok(())
}

/// The state in a master's own folder is to go in favour of the shared one, which must be the same cluster's, and not
/// one that was begun from reports because nobody had found this one.
fn check_same_state(
    own: &StateLocation,
    own_state: &[u8],
    shared: &StateLocation,
    shared_state: &[u8],
) -> Result<(), Error> {
    let ours = DirectoryState::decode(own_state).map_err(|cause| own.unreadable(cause))?;
    let theirs = DirectoryState::decode(shared_state).map_err(|cause| shared.unreadable(cause))?;
    let wrong = if ours.cluster_id != theirs.cluster_id {
        "is of another cluster"
    } else if theirs.rebuilt && !ours.rebuilt {
        "was rebuilt from what servers report, and lacks what only the folder's has"
    } else {
        return Ok(());
    };
    Err(Error::TwoStates {
        own: own.file.clone(),
        shared: shared.file.clone(),
        wrong,
    })
}

/// What the manifest says of garbage collection.
pub(crate) fn read_manifest(path: &Path) -> Result<Manifest, Error> {
    let read = std::fs::read(path).map_err(Into::into);
    read.and_then(|bytes| Manifest::decode(&bytes).map_err(Into::into))
        .map_err(|cause| Error::Manifest {
            path: path.to_owned(),
            cause,
        })
}
