//! `cargo xtask bench scrape`: what it costs to be scraped once a second. Rounds of the bank on one cluster, in pairs: one
//! round with scrapes and one without, the first of each pair in turns, so that whatever gets slower or quicker with time
//! counts for both.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::json;

use super::{Args, cluster::Cluster};
use crate::cmd::Cmd;

/// The master's port. The servers take the following ones, and behind these each its metrics.
const PORT: u16 = 17_400;
/// The master, the oracle, and as many tablet servers as there are without a manifest.
const SERVERS: u16 = 5;
/// How often metrics are read.
const EVERY: Duration = Duration::from_secs(1);
/// Of a round, where nothing else is said.
const DURATION: &str = "8s";
/// Samples for the interval of the ratio.
const SAMPLES: usize = 10_000;

pub(super) fn run(programs: &Path, args: &Args) -> anyhow::Result<()> {
    let percolator = programs.join("percolator");
    let duration = args.duration.as_deref().unwrap_or(DURATION);
    let cluster = Cluster::start(&percolator, PORT, &["--raw", "--ephemeral"])?;
    // The first round makes the accounts, and fills caches.
    println!(
        "to get warm: {:.0} transfers a second",
        bank(&percolator, duration)?
    );
    let mut pairs = Vec::new();
    for number in 1..=args.pairs {
        let mut pair = Pair::default();
        for scraped in [number % 2 == 0, number % 2 == 1] {
            if scraped {
                (pair.with, pair.read) = while_scraped(|| bank(&percolator, duration))?;
                println!(
                    "pair {number}: {:.0} transfers a second with scrapes: {}",
                    pair.with, pair.read
                );
            } else {
                pair.without = bank(&percolator, duration)?;
                println!(
                    "pair {number}: {:.0} transfers a second without",
                    pair.without
                );
            }
        }
        println!("pair {number}: {:.4} of it with scrapes", pair.ratio());
        pairs.push(pair);
    }
    cluster.stop()?;
    let result = Outcome::of(&pairs);
    println!("{result}");
    if let Some(file) = &args.json {
        let text = serde_json::to_vec_pretty(&result.json(&pairs))?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// One round: transfers a second.
fn bank(percolator: &Path, duration: &str) -> anyhow::Result<f64> {
    let cluster = format!("127.0.0.1:{PORT}");
    let answer = Cmd::new(percolator)
        .args(["-c", &cluster, "-o", "json", "--quiet", "bank"])
        .args(["--duration", duration])
        .silent_output()?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    let rate = answer["transfers_per_second"].as_f64();
    rate.filter(|rate| *rate > 0.0)
        .with_context(|| format!("nothing was transferred: {answer}"))
}

/// Reads every server's metrics once a second while something is done.
fn while_scraped<T>(done: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Scraped)> {
    let (ended, end) = mpsc::channel::<()>();
    let scraper = std::thread::spawn(move || scrape(&end));
    let result = done();
    drop(ended);
    let scraped = match scraper.join() {
        Ok(scraped) => scraped?,
        Err(_) => bail!("reading metrics panicked"),
    };
    Ok((result?, scraped))
}

/// The pages of metrics that were read.
#[derive(Clone, Copy, Debug, Default)]
struct Scraped {
    pages: u64,
    bytes: usize,
    longest: Duration,
}

impl fmt::Display for Scraped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pages, {:.1} MB, the slowest in {:.1} ms",
            self.pages,
            self.bytes as f64 / 1e6,
            self.longest.as_secs_f64() * 1e3
        )
    }
}

/// Reads the metrics of every server at once and then once a second, until the other end of the channel is gone. One that
/// does not answer is an error: a round without scrapes would be taken for one with them.
fn scrape(end: &mpsc::Receiver<()>) -> anyhow::Result<Scraped> {
    let mut scraped = Scraped::default();
    let mut next = Instant::now();
    while end.recv_timeout(next.saturating_duration_since(Instant::now()))
        == Err(RecvTimeoutError::Timeout)
    {
        next += EVERY;
        for port in PORT + SERVERS..PORT + 2 * SERVERS {
            let began = Instant::now();
            let bytes = page(port).with_context(|| format!("no metrics at port {port}"))?;
            scraped.pages += 1;
            scraped.bytes += bytes;
            scraped.longest = scraped.longest.max(began.elapsed());
        }
    }
    Ok(scraped)
}

/// Reads a page, and gives how long it is.
fn page(port: u16) -> io::Result<usize> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(10 * EVERY))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let status = answer.split(|byte| *byte == b'\r').next();
    let status = String::from_utf8_lossy(status.unwrap_or_default());
    if !status.ends_with(" 200 OK") {
        return Err(io::Error::other(format!("the answer is {status:?}")));
    }
    Ok(answer.len())
}

/// Two rounds that belong together: transfers a second of each.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    with: f64,
    without: f64,
    read: Scraped,
}

impl Pair {
    fn ratio(&self) -> f64 {
        self.with / self.without
    }
}

/// The result of all pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    /// Transfers a second, the median of all rounds with scrapes.
    with: f64,
    without: f64,
    /// The geometric mean of the pairs' ratios.
    ratio: f64,
    /// Where it lies with a probability of 95 %, as far as pairs are independent of each other.
    between: (f64, f64),
    median: f64,
    least: f64,
    most: f64,
}

impl Outcome {
    fn of(pairs: &[Pair]) -> Self {
        let ratios = sorted(pairs.iter().map(Pair::ratio));
        let means = sorted(resampled(&ratios));
        let at = |part: f64| means[(part * (means.len() - 1) as f64).round() as usize];
        Self {
            with: median(&sorted(pairs.iter().map(|pair| pair.with))),
            without: median(&sorted(pairs.iter().map(|pair| pair.without))),
            ratio: mean(ratios.iter().copied()),
            between: (at(0.025), at(0.975)),
            median: median(&ratios),
            least: ratios[0],
            most: ratios[ratios.len() - 1],
        }
    }

    fn json(&self, pairs: &[Pair]) -> serde_json::Value {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|pair| json!({"with": pair.with, "without": pair.without, "ratio": pair.ratio()}))
            .collect();
        json!({
            "pairs": pairs,
            "median_with": self.with,
            "median_without": self.without,
            "ratio": self.ratio,
            "ratio_low": self.between.0,
            "ratio_high": self.between.1,
            "ratio_median": self.median,
            "ratio_min": self.least,
            "ratio_max": self.most,
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            with,
            without,
            ratio,
            between: (low, high),
            median,
            least,
            most,
        } = self;
        writeln!(
            f,
            "medians of all rounds: {with:.0} transfers a second with scrapes, {without:.0} without"
        )?;
        write!(
            f,
            "of a pair: {ratio:.4} with scrapes (geometric mean; 95 %: {low:.4} to {high:.4}; median {median:.4}, from \
             {least:.4} to {most:.4})"
        )
    }
}

fn sorted(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// Of numbers in order, which are one at least.
fn median(numbers: &[f64]) -> f64 {
    let half = numbers.len() / 2;
    if numbers.len() % 2 == 1 {
        numbers[half]
    } else {
        f64::midpoint(numbers[half - 1], numbers[half])
    }
}

/// The geometric mean: that of a ratio and its inverse is 1.
fn mean(ratios: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = ratios.len() as f64;
    (ratios.map(f64::ln).sum::<f64>() / count).exp()
}

/// The means of samples of as many ratios, each drawn from all of them (a bootstrap). The same ones in every run.
fn resampled(ratios: &[f64]) -> impl Iterator<Item = f64> {
    let mut state = 0_u64;
    // SplitMix64.
    let mut draw = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as usize
    };
    (0..SAMPLES).map(move |_| mean(ratios.iter().map(|_| ratios[draw() % ratios.len()])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(with: f64, without: f64) -> Pair {
        Pair {
            with,
            without,
            read: Scraped::default(),
        }
    }

    #[test]
    fn what_is_slower_in_one_pair_and_quicker_in_another_is_as_quick() {
        let outcome = Outcome::of(&[pair(200.0, 100.0), pair(50.0, 100.0)]);
        assert!((outcome.ratio - 1.0).abs() < 1e-9, "{outcome}");
        assert_eq!((outcome.least, outcome.most), (0.5, 2.0), "{outcome}");
        assert_eq!(outcome.between, (0.5, 2.0), "{outcome}");
    }

    #[test]
    fn the_interval_holds_the_mean_and_lies_within_what_was_seen() {
        let pairs: Vec<Pair> = (0..10)
            .map(|n| pair(980.0 + 4.0 * f64::from(n), 1000.0))
            .collect();
        let outcome = Outcome::of(&pairs);
        let (low, high) = outcome.between;
        assert!(outcome.least < low && low < outcome.ratio, "{outcome}");
        assert!(outcome.ratio < high && high < outcome.most, "{outcome}");
        assert!((outcome.ratio - 0.998).abs() < 1e-3, "{outcome}");
        assert_eq!(outcome.with, 998.0, "{outcome}");
        assert_eq!(outcome, Outcome::of(&pairs));
    }

    #[test]
    fn one_pair_is_no_interval() {
        let outcome = Outcome::of(&[pair(99.0, 100.0)]);
        assert_eq!(outcome.median, 0.99);
        assert!((outcome.between.0 - outcome.between.1).abs() < 1e-9);
    }
}
