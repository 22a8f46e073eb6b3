//! A cluster in bad weather: in front of each server a proxy, through which everybody else reaches it. What
//! goes through it comes late, or waits as it does for a packet that was lost and is sent again; and
//! connections end, also in the middle of a message.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::server::{self, Place, Running};
use super::{Choices, CommandOutput, PERCOLATOR, SERVERS, output_of, wait_until_ready};

/// What happens to each piece of at most 4 KiB that goes through a proxy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// It is held for up to this long, in milliseconds.
    pub(crate) delay_ms: u64,
    /// Of a thousand, so many wait for 200 to 1,200 ms, as if packets were lost.
    pub(crate) lost: u64,
    /// Of a thousand, so many are cut off anywhere, and their connection ends.
    pub(crate) resets: u64,
}

struct Sky {
    weather: Mutex<Weather>,
    choices: Mutex<Choices>,
    over: AtomicBool,
}

/// The servers, and the proxies in front of them.
pub(crate) struct Storm {
    sky: Arc<Sky>,
    hosts: BTreeMap<&'static str, Host>,
    pub(crate) folder: tempfile::TempDir,
}

struct Host {
    server: Running,
    listen: String,
    proxy: String,
    accepting: Option<JoinHandle<()>>,
}

impl Storm {
    /// In calm weather. `seed`: of what the weather does to each piece.
    pub(crate) fn new(seed: u64) -> Self {
        let sky = Arc::new(Sky {
            weather: Mutex::default(),
            choices: Mutex::new(Choices::from_seed(seed)),
            over: AtomicBool::new(false),
        });
        let mut storm = Self {
            sky: sky.clone(),
            hosts: BTreeMap::new(),
            folder: tempfile::tempdir().expect("a folder"),
        };
        // Every address of 127.0.0.0/8 is this machine, and these are nobody else's.
        let net = std::process::id() % 60_000;
        for (number, server) in SERVERS.into_iter().enumerate() {
            let listen = format!("127.{}.{}.{}:7400", 10 + net / 250, net % 250, 10 + number);
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let proxy = listener.local_addr().expect("an address").to_string();
            let (sky, target) = (sky.clone(), listen.clone());
            let accepting = std::thread::spawn(move || accept(&listener, &target, &sky));
            let host = Host {
                server: Running::default(),
                listen,
                proxy,
                accepting: Some(accepting),
            };
            storm.hosts.insert(server, host);
        }
        for server in SERVERS {
            storm.start(server);
        }
        wait_until_ready(|arguments| storm.run(arguments));
        storm
    }

    /// Changes the weather.
    pub(crate) fn set(&self, weather: Weather) {
        *self.sky.weather.lock() = weather;
    }

    fn start(&mut self, server: &'static str) {
        let master = self.hosts["master-0"].proxy.clone();
        let host = self.hosts.get_mut(server).expect("a host");
        let place = Place {
            server,
            listen: &host.listen,
            advertise: Some(&host.proxy),
            master: &master,
            folder: self.folder.path(),
        };
        host.server = Running::new(server::start(&place, |program| Command::new(program)));
    }

    /// The process of a server.
    pub(crate) fn pid(&self, server: &str) -> u32 {
        self.hosts[server].server.pid()
    }

    /// Kills a server with SIGKILL, and starts it again.
    pub(crate) fn kill(&mut self, server: &'static str) {
        let host = self.hosts.get_mut(server).expect("a host");
        host.server.kill();
        self.start(server);
    }

    /// A command of a client, to be started by the caller.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PERCOLATOR);
        command
            .args(["-c", &self.hosts["master-0"].proxy])
            .args(arguments);
        command
    }

    /// Runs a command of a client to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        output_of(self.command(arguments))
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.sky.over.store(true, Ordering::Relaxed);
        for (name, host) in &mut self.hosts {
            host.server.end(self.folder.path(), name);
            // Wakes it, and it sees that it is over.
            let _ = TcpStream::connect(&host.proxy);
            if let Some(accepting) = host.accepting.take() {
                let _ = accepting.join();
            }
        }
    }
}

fn accept(listener: &TcpListener, target: &str, sky: &Arc<Sky>) {
    for incoming in listener.incoming().map_while(Result::ok) {
        if sky.over.load(Ordering::Relaxed) {
            return;
        }
        // A server that is down refuses; here the connection ends at once.
        let Ok(onward) = TcpStream::connect(target) else {
            continue;
        };
        for (from, to) in [(&incoming, &onward), (&onward, &incoming)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else {
                continue;
            };
            let _ = to.set_nodelay(true);
            let sky = sky.clone();
            std::thread::spawn(move || carry(from, to, &sky));
        }
    }
}

/// Carries one direction of a connection until it ends.
fn carry(mut from: TcpStream, mut to: TcpStream, sky: &Sky) {
    let mut piece = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        let weather = *sky.weather.lock();
        let (late, reset) = {
            let mut choices = sky.choices.lock();
            let mut late = choices.below(weather.delay_ms + 1);
            if choices.below(1000) < weather.lost {
                late += 200 + choices.below(1000);
            }
            let reset = choices.below(1000) < weather.resets;
            (late, reset.then(|| choices.below(read as u64) as usize))
        };
        if late > 0 {
            std::thread::sleep(Duration::from_millis(late));
        }
        let sent = to.write_all(&piece[..reset.unwrap_or(read)]);
        if sent.is_err() || reset.is_some() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
