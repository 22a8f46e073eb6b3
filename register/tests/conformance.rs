//! The registers in a file and in a folder pass the suite.

use std::path::PathBuf;
use std::sync::Arc;

use percolator_register::conformance::{self, Bed, Fault, FaultyFiles, FaultyRegister};
use percolator_register::{BoxFuture, FileRegister, FolderRegister, Register};
use tokio::sync::watch;

struct FileBed {
    folder: tempfile::TempDir,
    /// Each value is a file of its own.
    is_folder: bool,
}

impl FileBed {
    fn path(&self) -> PathBuf {
        self.folder.path().join("register")
    }
}

impl Bed for FileBed {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Register>> {
        let register: Arc<dyn Register> = if self.is_folder {
            Arc::new(FolderRegister::new(self.path()))
        } else {
            Arc::new(FileRegister::new(self.path()))
        };
        Box::pin(async move { register })
    }

    fn open_faulty(&self) -> BoxFuture<'_, FaultyRegister> {
        let fault = Arc::new(watch::Sender::new(Fault::None));
        let files = Arc::new(FaultyFiles::new(fault.clone()));
        let register: Arc<dyn Register> = if self.is_folder {
            Arc::new(FolderRegister::on(files, self.path()))
        } else {
            Arc::new(FileRegister::on(files, self.path()))
        };
        Box::pin(async move { FaultyRegister { register, fault } })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_register_in_a_file() {
    conformance::run(async |_| FileBed {
        folder: tempfile::tempdir().expect("a folder"),
        is_folder: false,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_register_in_a_folder() {
    conformance::run(async |_| FileBed {
        folder: tempfile::tempdir().expect("a folder"),
        is_folder: true,
    })
    .await;
}
