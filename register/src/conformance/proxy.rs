//! A proxy between a client and its store, which loses what goes one way.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::Fault;

/// Forwards connections to one address, and loses what the fault says. It goes on for as long as its runtime.
#[derive(Debug)]
pub struct FaultyProxy {
    /// Where it listens, on this machine.
    pub address: SocketAddr,
    /// What is lost from now on.
    pub fault: Arc<watch::Sender<Fault>>,
}

impl FaultyProxy {
    /// A proxy before `store`, HOST:PORT.
    ///
    /// # Panics
    /// The system gives no port.
    pub async fn start(store: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let fault = Arc::new(watch::Sender::new(Fault::None));
        let faults = fault.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let faults = faults.subscribe();
                if *faults.borrow() != Fault::Disconnected {
                    tokio::spawn(forward(client, store.clone(), faults));
                }
            }
        });
        Self { address, fault }
    }
}

async fn forward(client: TcpStream, store: String, mut faults: watch::Receiver<Fault>) {
    let Ok(store) = TcpStream::connect(store).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_store, to_store) = store.into_split();
    let requests = copy(from_client, to_store, faults.clone(), Fault::RequestsLost);
    let answers = copy(from_store, to_client, faults.clone(), Fault::AnswersLost);
    let disconnected = faults.wait_for(|fault| *fault == Fault::Disconnected);
    // Both halves go at once, when either ends: as a connection does.
    tokio::select! {
        () = requests => {}
        () = answers => {}
        _ = disconnected => {}
    }
}

/// Copies until an end, but for what is read while the fault is on. After it was on, bytes are missing, and nothing that
/// comes later makes sense: it is lost, too.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    faults: watch::Receiver<Fault>,
    lost: Fault,
) {
    let mut buffer = vec![0; 64 << 10];
    let mut is_torn = false;
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if *faults.borrow() == lost {
            is_torn = true;
        } else if is_torn {
            return;
        }
        if !is_torn && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
