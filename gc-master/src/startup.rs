//! What a master finds when it starts: its folder, and the registers of its state and of the masters' leadership.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::election::{StateNumber, StateSource};
use percolator_register::{
    FileRegister, Register, VALUE_BYTES_MAX, VersionedFile, VersionedFolder,
};
use percolator_server::{Folder, RegisterLocation, RegisterPart, load_when_available};

use crate::copies;
use crate::core::Directory;
use crate::error::Error;
use crate::events::Start;
use crate::server::Options;
use crate::settings::Manifest;
use crate::state::{DirectoryState, Drain, StateError};
use crate::stored::{PersistError, StateStore, StoreWaits, StoredState};

/// The register of the state of a master that is alone, in its folder.
const STATE: &str = "directory";
/// The extension of that one's file once a shared register has it.
const ASIDE: &str = "moved";
/// The most bytes of a state in a file. The directory of a thousand tables needs less.
const FILE_BYTES_MAX: usize = 16 << 20;
/// A device that takes longer for the state has stalled. The master ends when it has not answered a second time.
const STATE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a register of the state that doesn't answer is asked again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The register that says which of several masters leads. A store that takes longer is asked again: a leader has to renew
/// its right within two seconds.
pub(crate) const LEADERSHIP: RegisterPart = RegisterPart {
    file: "master",
    object_suffix: "",
    timeout: Duration::from_secs(1),
    file_bytes_max: VALUE_BYTES_MAX,
};
/// The register of the state of several masters. If the store takes longer, another master can lead meanwhile.
const SHARED_STATE: RegisterPart = RegisterPart {
    file: "master-state",
    object_suffix: "-state",
    timeout: Duration::from_secs(5),
    file_bytes_max: FILE_BYTES_MAX,
};

/// Returns the tablet servers that are drained by the state in a file, of a master that doesn't run: those that have no tablets and
/// get none. `folders`: of all masters. Empty: the file has no state, or a folder has a copy of a later one.
///
/// # Errors
/// [`Error::Persist`] and [`Error::State`]: what is in the file can't be read.
pub fn drained_servers(file: &Path, folders: &[PathBuf]) -> Result<Vec<String>, Error> {
    let stored = if file.is_dir() {
        // The register that several masters share.
        let folder = VersionedFolder::new(file).with_value_bytes_max(FILE_BYTES_MAX);
        folder.load()
    } else {
        let file = VersionedFile::new(file).with_value_bytes_max(FILE_BYTES_MAX);
        file.load()
    };
    let stored = stored.map_err(PersistError::Load)?;
    let stored = stored.and_then(|stored| StoredState::decode(stored.value));
    let Some(stored) = stored else {
        return Ok(Vec::new());
    };
    for folder in folders {
        let copy = copies::number_in(folder)?;
        if copy.is_some_and(|copy| {
            (copy.term, copy.number) > (stored.number.term, stored.number.number)
        }) {
            return Ok(Vec::new());
        }
    }
    let state = DirectoryState::decode(&stored.state).map_err(|cause| Error::State {
        register: file.display().to_string(),
        cause,
    })?;
    let drained = state.servers.iter();
    let drained = drained.filter(|(_, server)| server.drain == Drain::Drained);
    Ok(drained.map(|(name, _)| name.to_owned()).collect())
}

/// A directory that was begun with the stored state.
pub(crate) struct Opened {
    pub(crate) directory: Directory,
    pub(crate) store: StateStore,
    /// In which term that state was written; 0: in none.
    pub(crate) stored_term: u64,
    /// It is the copy in the master's folder.
    pub(crate) is_copy: bool,
}

/// Where the state is.
pub(crate) struct StateLocation {
    register: Arc<dyn Register>,
    /// For messages: a path, or an object.
    name: String,
    /// The register's file, if it is one.
    pub(crate) file: Option<PathBuf>,
}

impl StateLocation {
    fn unreadable(&self, cause: StateError) -> Error {
        Error::State {
            register: self.name.clone(),
            cause,
        }
    }

    /// The most bytes that the state may have with one more table. What servers report makes it larger by less than the
    /// rest of what the register takes.
    fn state_bytes_max(&self) -> usize {
        self.register.value_bytes_max() / 4 * 3
    }

    /// Whether the register has anything; not if it can't be read.
    pub(crate) async fn is_stored(&self) -> bool {
        matches!(self.register.load().await, Ok(Some(_)))
    }

    /// Of a master that is alone.
    pub(crate) fn alone(folder: &Folder) -> Self {
        let file = own_file(folder);
        let register = FileRegister::new(&file)
            .with_timeout(STATE_TIMEOUT)
            .with_value_bytes_max(FILE_BYTES_MAX);
        Self {
            register: Arc::new(register),
            name: file.display().to_string(),
            file: Some(file),
        }
    }

    /// Of several masters. `creates`: see [`RegisterLocation::open`].
    ///
    /// # Errors
    /// The register can't be opened.
    pub(crate) fn shared(location: &RegisterLocation, creates: bool) -> Result<Self, Error> {
        let file = match location {
            RegisterLocation::File(folder) => Some(folder.join(SHARED_STATE.file)),
            #[cfg(feature = "kubernetes")]
            RegisterLocation::Kubernetes(_) => None,
            #[cfg(feature = "etcd")]
            RegisterLocation::Etcd(_) => None,
        };
        Ok(Self {
            register: location.open(SHARED_STATE, creates)?,
            name: location.describe(SHARED_STATE),
            file,
        })
    }

    /// Reads the state, and begins a directory with it, or with the copy in the master's folder if that is later. The state is
    /// not this master's yet: see [`StateStore::load`].
    pub(crate) async fn open(
        &self,
        term: u64,
        (options, folder): (&Options, &Folder),
        copy: Option<(StateNumber, Vec<u8>)>,
    ) -> Result<Opened, Error> {
        let (register, waits) = (self.register.clone(), StoreWaits::up_to(RETRY_MAX));
        let (store, stored, source) = StateStore::load_newest(register, term, waits, copy).await?;
        let stored_term = stored.as_ref().map_or(0, |stored| stored.number.term);
        let start = match stored {
            Some(StoredState { state, .. }) => Start::State(state),
            None if options.register.is_none() && aside(folder).exists() => {
                return Err(Error::Moved {
                    path: aside(folder),
                });
            }
            None => match folder.cluster_id() {
                // Several masters have begun theirs before: see [`begin_shared_state`].
                None if options.new_cluster && options.register.is_none() => Start::NewCluster,
                cluster_id => Start::NoState { cluster_id },
            },
        };
        let directory = Directory::open(start, options.settings, rand::random());
        let mut directory = directory.map_err(|cause| self.unreadable(cause))?;
        directory.limit_state(self.state_bytes_max());
        if let Some(path) = &options.manifest {
            directory.take_manifest(read_manifest(path)?);
        }
        Ok(Opened {
            directory,
            store,
            stored_term,
            is_copy: source == StateSource::Copy,
        })
    }
}

/// The file of the state of a master that is alone.
fn own_file(folder: &Folder) -> PathBuf {
    folder.path().join(STATE)
}

/// Where the state of a master that was alone lies since a shared register has it.
fn aside(folder: &Folder) -> PathBuf {
    own_file(folder).with_extension(ASIDE)
}

/// From now on the shared register alone has the state: a master that is started without it must not go on from here.
fn set_aside(folder: &Folder) {
    match std::fs::rename(own_file(folder), aside(folder)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, "the state of before can't be set aside in this master's folder");
        }
        _ => {}
    }
}

/// Sees to it that a shared register has the state that this master knows: that of its own folder, if it was alone until
/// now, or that of a new cluster. The register's own state is left as it is. A register that can't be read now is waited
/// for.
pub(crate) async fn begin_shared_state(
    shared: &StateLocation,
    options: &Options,
    folder: &Folder,
) -> Result<(), Error> {
    let own = StateLocation::alone(folder);
    let (_, own_state) =
        StateStore::load(own.register.clone(), 0, StoreWaits::up_to(RETRY_MAX)).await?;
    let own_state = own_state.map(|stored| stored.state);
    load_when_available(&*shared.register)
        .await
        .map_err(PersistError::from)?;
    loop {
        let (mut store, found) =
            StateStore::load(shared.register.clone(), 0, StoreWaits::up_to(RETRY_MAX)).await?;
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
        let (bytes, bytes_max) = (state.len(), shared.state_bytes_max());
        if bytes > bytes_max {
            return Err(Error::StateTooLarge {
                own: own.name,
                bytes,
                shared: shared.name.clone(),
                bytes_max,
            });
        }
        match store.store(0, &state).await {
            Ok(()) => break,
            // Another master was first.
            Err(PersistError::Superseded) => {}
            Err(error) => return Err(error.into()),
        }
    }
    set_aside(folder);
    Ok(())
}

/// The state in a master's own folder is to go in favour of the shared one, which must be the same cluster's.
fn check_same_state(
    own: &StateLocation,
    own_state: &[u8],
    shared: &StateLocation,
    shared_state: &[u8],
) -> Result<(), Error> {
    let ours = DirectoryState::decode(own_state).map_err(|cause| own.unreadable(cause))?;
    let theirs = DirectoryState::decode(shared_state).map_err(|cause| shared.unreadable(cause))?;
    if ours.cluster_id == theirs.cluster_id {
        return Ok(());
    }
    Err(Error::TwoStates {
        own: own.name.clone(),
        shared: shared.name.clone(),
    })
}

/// The manifest's settings of garbage collection.
pub(crate) fn read_manifest(path: &Path) -> Result<Manifest, Error> {
    let read = std::fs::read(path).map_err(Into::into);
    read.and_then(|bytes| Manifest::decode(&bytes).map_err(Into::into))
        .map_err(|cause| Error::Manifest {
            path: path.to_owned(),
            cause,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(data_dir: PathBuf) -> Options {
        Options {
            data_dir,
            listen: ([127, 0, 0, 1], 0).into(),
            metrics_listen: None,
            traces: None,
            advertise: None,
            register: Some(RegisterLocation::File("elsewhere".into())),
            server: "master-0".into(),
            new_cluster: false,
            settings: crate::Settings::default(),
            manifest: None,
        }
    }

    #[tokio::test]
    async fn a_state_that_does_not_fit_stays_where_it_is() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path().join("own"), "master", "master-0", None);
        let folder = folder.unwrap();
        let own = StateLocation::alone(&folder);
        let begun = Directory::open(Start::NewCluster, crate::Settings::default(), 7);
        let state = begun.unwrap().take_effects().persist.unwrap();
        let (mut store, _) =
            StateStore::load(own.register.clone(), 0, StoreWaits::up_to(RETRY_MAX))
                .await
                .unwrap();
        store.store(0, &state).await.unwrap();

        let with_room = |bytes_max| {
            let file = place.path().join("shared");
            let register = FileRegister::new(&file).with_value_bytes_max(bytes_max);
            StateLocation {
                register: Arc::new(register),
                name: "the register".into(),
                file: Some(file),
            }
        };
        let options = options(folder.path().to_owned());
        let small = with_room(state.len() + 8);
        let refused = begin_shared_state(&small, &options, &folder).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("the register, takes at most"), "{refused}");
        assert_eq!(small.register.load().await.unwrap(), None);
        assert!(own_file(&folder).exists() && !aside(&folder).exists());

        let large = with_room(2 * state.len());
        begin_shared_state(&large, &options, &folder).await.unwrap();
        assert!(!own_file(&folder).exists() && aside(&folder).exists());
        let (_, stored) = StateStore::load(large.register.clone(), 0, StoreWaits::up_to(RETRY_MAX))
            .await
            .unwrap();
        assert_eq!(stored.map(|stored| stored.state), Some(state));
    }
}
