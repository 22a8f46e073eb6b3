//! The register in a file passes the suite.

use std::path::PathBuf;
use std::sync::Arc;

use percolator_register::conformance::{self, Bed, Fault, FaultyFiles, FaultyRegister};
use percolator_register::{BoxFuture, FileRegister, Register};
use tokio::sync::watch;

struct FileBed {
    folder: tempfile::TempDir,
}

impl FileBed {
    fn path(&self) -> PathBuf {
        self.folder.path().join("register")
    }
}

impl Bed for FileBed {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Register>> {
        let register = FileRegister::new(self.path());
        Box::pin(async move { Arc::new(register) as Arc<dyn Register> })
    }

    fn open_faulty(&self) -> BoxFuture<'_, FaultyRegister> {
        let fault = Arc::new(watch::Sender::new(Fault::None));
        let files = Arc::new(FaultyFiles::new(fault.clone()));
        let register = Arc::new(FileRegister::on(files, self.path()));
        Box::pin(async move { FaultyRegister { register, fault } })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_register_in_a_file() {
    conformance::run(async |_| FileBed {
        folder: tempfile::tempdir().expect("a folder"),
    })
    .await;
}
