//! A machine that crashes between any two steps of a swap leaves the old value or the new one, and never goes back behind
//! what a load has returned.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use percolator_register::files::{Files, FolderFiles, NewFile};
use percolator_register::{
    LoadError, RegisterVersion, SwapError, VersionedFile, VersionedFolder, VersionedValue, WriteId,
};

const PATH: &str = "register";

/// A change of names that no sync has made durable.
#[derive(Clone)]
enum NameChange {
    Made(String, usize),
    Moved(String, String),
    Removed(String),
}

/// What a crash leaves of content that was not synced.
#[derive(Clone, Copy, Debug)]
enum Unsynced {
    Lost,
    Torn,
    Stays,
}

#[derive(Clone, Default)]
struct State {
    /// The content of each file, and how much of it is synced.
    files: Vec<(Vec<u8>, usize)>,
    names: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    changes: Vec<NameChange>,
    steps: usize,
    /// From this step on every step fails: the machine has crashed.
    crash_at: Option<usize>,
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        if self.crash_at == Some(self.steps) {
            return Err(io::Error::other("crashed"));
        }
        self.steps += 1;
        Ok(())
    }

    /// The device after a crash that kept the first `kept` changes of names.
    fn crashed(&self, kept: usize, unsynced: Unsynced) -> Self {
        let mut state = self.clone();
        state.names = state.durable.clone();
        for change in &self.changes[..kept] {
            apply(&mut state.names, change);
        }
        state.durable = state.names.clone();
        state.changes.clear();
        for (content, synced) in &mut state.files {
            match unsynced {
                Unsynced::Lost => content.truncate(*synced),
                Unsynced::Torn => content.truncate((*synced).midpoint(content.len())),
                Unsynced::Stays => {}
            }
            *synced = content.len();
        }
        (state.steps, state.crash_at) = (0, None);
        state
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Made(name, file) => {
            names.insert(name.clone(), *file);
        }
        NameChange::Moved(from, to) => {
            let file = names.remove(from).expect("a file that was made before");
            names.insert(to.clone(), file);
        }
        NameChange::Removed(name) => {
            names.remove(name);
        }
    }
}

/// Which of both is tried.
#[derive(Clone, Copy, Debug)]
enum Kind {
    File,
    Folder,
}

/// A handle of one of both.
enum Register {
    File(VersionedFile),
    Folder(VersionedFolder),
}

impl Register {
    fn load(&self) -> Result<Option<VersionedValue>, LoadError> {
        match self {
            Self::File(file) => file.load(),
            Self::Folder(folder) => folder.load(),
        }
    }

    fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: &[u8],
        write: WriteId,
    ) -> Result<RegisterVersion, SwapError> {
        match self {
            Self::File(file) => file.swap(expected, value, write),
            Self::Folder(folder) => folder.swap(expected, value, write),
        }
    }
}

#[derive(Clone, Default)]
struct Device(Arc<Mutex<State>>);

impl Device {
    fn new(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> State {
        self.0.lock().expect("no panic").clone()
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.0.lock().expect("no panic");
        state.step()?;
        act(&mut state)
    }

    fn change(state: &mut State, change: NameChange) {
        apply(&mut state.names, &change);
        state.changes.push(change);
    }

    fn register(&self, kind: Kind) -> Register {
        let files = Arc::new(self.clone());
        match kind {
            Kind::File => Register::File(VersionedFile::on(files, PATH)),
            Kind::Folder => Register::Folder(VersionedFolder::on(files, PATH)),
        }
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

impl Files for Device {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.with(|state| {
            let file = state.names.get(&name(path));
            let file = file.ok_or(io::ErrorKind::NotFound)?;
            Ok(state.files[*file].0.clone())
        })
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let file = self.with(|state| {
            let name = name(path);
            if let Some(file) = state.names.get(&name) {
                state.files[*file] = (Vec::new(), 0);
                return Ok(*file);
            }
            let file = state.files.len();
            state.files.push((Vec::new(), 0));
            Self::change(state, NameChange::Made(name, file));
            Ok(file)
        })?;
        let device = self.clone();
        Ok(Box::new(OpenFile { device, file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with(|state| {
            Self::change(state, NameChange::Moved(name(from), name(to)));
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            if !state.names.contains_key(&name(path)) {
                return Err(io::ErrorKind::NotFound.into());
            }
            Self::change(state, NameChange::Removed(name(path)));
            Ok(())
        })
    }

    fn sync_folder_of(&self, _: &Path) -> io::Result<()> {
        self.with(|state| {
            state.durable = state.names.clone();
            state.changes.clear();
            Ok(())
        })
    }
}

impl FolderFiles for Device {
    fn make_folder(&self, _: &Path) -> io::Result<()> {
        self.with(|_| Ok(()))
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let prefix = format!("{}/", folder.display());
        self.with(|state| {
            let names = state.names.keys();
            let names = names.filter_map(|name| name.strip_prefix(&prefix));
            Ok(names.map(str::to_owned).collect())
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with(|state| {
            let file = state.names.get(&name(from));
            let file = *file.ok_or(io::ErrorKind::NotFound)?;
            if state.names.contains_key(&name(to)) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Self::change(state, NameChange::Made(name(to), file));
            Ok(())
        })
    }
}

struct OpenFile {
    device: Device,
    file: usize,
}

impl NewFile for OpenFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.device.with(|state| {
            state.files[self.file].0.extend_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.device.with(|state| {
            let (content, synced) = &mut state.files[self.file];
            *synced = content.len();
            Ok(())
        })
    }
}

/// Every way in which the device can be after a crash.
fn crashes(state: &State) -> impl Iterator<Item = State> {
    let all = [Unsynced::Lost, Unsynced::Torn, Unsynced::Stays];
    (0..=state.changes.len())
        .flat_map(move |kept| all.map(|unsynced| state.crashed(kept, unsynced)))
}

fn version(value: Option<&VersionedValue>) -> u64 {
    value.map_or(0, |value| value.version.0)
}

/// Swaps once on `device`, crashes at every step, and checks what is there. Gives how many crashes it has seen.
fn crash_at_every_step(kind: Kind, before: &State, old: Option<&VersionedValue>) -> usize {
    let write = WriteId([9; 16]);
    let expected = old.map(|old| old.version);
    let mut seen = 0;
    for step in 0.. {
        let device = Device::new(State {
            crash_at: Some(step),
            steps: 0,
            ..before.clone()
        });
        let result = device.register(kind).swap(expected, b"new value", write);
        let crashed = device.state();
        for state in crashes(&crashed) {
            seen += 1;
            let device = Device::new(state);
            let found = device.register(kind).load().expect("never torn");
            let is_new = found.as_ref().is_some_and(|found| found.write == write);
            match &result {
                Ok(version) => assert_eq!(found.as_ref().unwrap().version, *version),
                Err(SwapError::Unavailable { .. }) => assert!(!is_new, "step {step}"),
                Err(error) => assert!(matches!(error, SwapError::Unknown { .. }), "{error}"),
            }
            if !is_new {
                assert_eq!(found.as_ref(), old, "step {step}");
            }
            // What was returned stays.
            for again in crashes(&device.state()) {
                let again = Device::new(again)
                    .register(kind)
                    .load()
                    .expect("never torn");
                assert!(version(again.as_ref()) >= version(found.as_ref()));
            }
        }
        if result.is_ok() {
            return seen;
        }
        // The process died, and the machine did not: another process sees what is in its memory.
        let device = Device::new(State {
            crash_at: None,
            ..crashed
        });
        let found = device.register(kind).load().expect("never torn");
        for state in crashes(&device.state()) {
            let again = Device::new(state)
                .register(kind)
                .load()
                .expect("never torn");
            assert_eq!(again, found, "what was returned stays");
        }
        let next = found.as_ref().map(|found| found.version);
        let after = device.register(kind).swap(next, b"next", WriteId([8; 16]));
        assert_eq!(after, Ok(RegisterVersion(version(found.as_ref()) + 1)));
    }
    seen
}

#[test]
fn a_crash_between_any_two_steps_leaves_the_old_value_or_the_new_one() {
    for kind in [Kind::File, Kind::Folder] {
        let device = Device::default();
        let register = device.register(kind);
        let mut old = None;
        for round in 0..5_u8 {
            // Of 7 steps at least: read, create, write, sync, read, rename or link, sync of the folder.
            assert!(crash_at_every_step(kind, &device.state(), old.as_ref()) >= 7);
            let expected = old.as_ref().map(|old| old.version);
            let value = vec![round; 100 * usize::from(round)];
            register
                .swap(expected, &value, WriteId([round; 16]))
                .expect("a swap");
            old = register.load().expect("a load");
        }
    }
}
