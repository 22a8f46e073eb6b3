//! The chart, the operator and its clusters on a real Kubernetes, which this starts, and stops again.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::ValueEnum as _;

use crate::{
    context::Context,
    debian, image,
    kube::{self, network::Network, oci, release::Release, traces::Traces},
    parts::{Report, unit},
    programs::TestProgram,
    tally::Skipped,
};

const PACKAGE: &str = "percolator-e2e";
const IMAGE: &str = concat!("localhost/percolator:", env!("CARGO_PKG_VERSION"));
const OTHER_IMAGE: &str = "localhost/percolator:other";
const OLDER_IMAGE: &str = "localhost/percolator:older";
/// Of an observer's own program.
const HANDLER_IMAGE: &str = "localhost/measure:1";
/// The test program that is to run last.
const LAST: &str = "rights";
/// The test programs that need a Kubernetes of other addresses than the others do, and which.
const OF_ADDRESSES: [(&str, Network); 2] = [("dual_stack", Network::BOTH), ("ipv6", Network::IPV6)];
/// The test program that needs an older release.
pub(crate) const OLDER: &str = "older";
const LIMIT: Duration = Duration::from_secs(1_500);

/// Of an API server that stands still, unless somebody asks for longer: some leases of servers, which are of ten seconds.
const API_SERVER_AWAY: Duration = Duration::from_secs(40);

/// The arguments of the part.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct E2eArgs {
    /// Of the part e2e, only this test program, as `scaling`; may be given several times. Default: all.
    #[arg(long = "e2e", value_name = "PROGRAM")]
    pub(crate) only: Vec<String>,
    /// Of the part e2e, on which version of Kubernetes.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) kubernetes: Release,
    /// The API server stands still for so long.
    #[arg(skip)]
    pub(crate) api_server_away: Option<Duration>,
    /// The release to upgrade from; without it that isn't tested.
    #[arg(skip)]
    pub(crate) older: Option<OlderRelease>,
}

/// The chart and the image of an older commit.
#[derive(Clone, Debug)]
pub(crate) struct OlderRelease {
    /// The folder of its programs.
    pub(crate) programs: PathBuf,
    /// The folder of its chart.
    pub(crate) chart: PathBuf,
}

impl E2eArgs {
    /// The same as arguments of a command.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let only = self.only.iter();
        let only = only.flat_map(|program| ["--e2e".to_owned(), program.clone()]);
        let kubernetes = self.kubernetes.to_possible_value();
        let kubernetes = kubernetes.map(|it| format!("--kubernetes={}", it.get_name()));
        only.chain(kubernetes).collect()
    }

    fn api_server_away(&self) -> Duration {
        self.api_server_away.unwrap_or(API_SERVER_AWAY)
    }

    /// The programs to run, in their order.
    fn programs<'a>(&self, built: &'a [TestProgram]) -> anyhow::Result<Vec<&'a TestProgram>> {
        let mut programs: Vec<_> = built.iter().filter(|test| is_it(test)).collect();
        anyhow::ensure!(!programs.is_empty(), "cargo has not built {PACKAGE}");
        let names = programs.iter().map(|it| it.name.as_str());
        let names: Vec<&str> = names.filter(|name| *name != OLDER).collect();
        let mut only = self.only.iter().filter(|it| *it != OLDER);
        if let Some(unknown) = only.find(|it| !names.contains(&it.as_str())) {
            anyhow::bail!(
                "--e2e {unknown}: there is no such program, but {}",
                names.join(", ")
            );
        }
        anyhow::ensure!(
            self.older.is_some() || !self.only.iter().any(|it| it == OLDER),
            "--e2e {OLDER} is run by `cargo xtask soak --upgrade-from COMMIT`"
        );
        if self.older.is_none() {
            programs.retain(|it| it.name != OLDER);
        }
        programs.retain(|it| self.only.is_empty() || self.only.contains(&it.name));
        // It checks what the others on its Kubernetes made the operator do.
        programs.sort_by_key(|program| program.name == LAST);
        Ok(programs)
    }
}

/// Whether this is a program that the part runs, and no other part.
pub(crate) fn is_it(program: &TestProgram) -> bool {
    program.package == PACKAGE && program.kind == "test"
}

pub(crate) fn run(
    context: &Context,
    args: &E2eArgs,
    report: &mut Report,
) -> anyhow::Result<String> {
    let limit = LIMIT + args.api_server_away();
    if let Some(why) = kube::programs::why_not(context.root(), args.kubernetes) {
        println!("SKIPPED: no Kubernetes can be run here: {why}");
        report.tally.skipped.push(Skipped {
            test: "the tests on Kubernetes".to_owned(),
            why,
        });
        return Ok("nothing: no Kubernetes can be run here".to_owned());
    }
    let built = report.step("build", |_| context.built())?;
    let programs = args.programs(&built.tests)?;
    // Anyone who runs them in another checkout of this machine would end ours, or we theirs; and two would install packages, or
    // build the same programs.
    let _alone = kube::lock::take("the tests on Kubernetes", limit * 2)?;
    report.step("Kubernetes' programs", |_| {
        kube::programs::install_packages()?;
        kube::programs::Programs::build(context.root(), args.kubernetes)
    })?;
    if kube::is_any() {
        println!("a Kubernetes for tests was left up on this machine: it is stopped");
    }
    kube::down()?;
    let before = Traces::now();
    report.step("kube up, killed, and down", |_| {
        kube::up_killed_in_the_middle(args.kubernetes)?;
        anyhow::ensure!(
            kube::is_any(),
            "a killed `kube up` has left nothing to remove"
        );
        kube::down()?;
        nothing_is_left(&before)
    })?;
    let network_of = |program: &TestProgram| {
        let mut of = OF_ADDRESSES
            .iter()
            .filter(|(name, _)| program.name == *name);
        of.next().map_or(Network::IPV4, |(_, network)| *network)
    };
    let older = args.older.as_ref();
    let images = report.step("images made", |_| {
        Images::make(context, &built.programs, older)
    })?;
    let tested = Tested {
        context,
        release: args.kubernetes,
        images,
        away: args.api_server_away(),
        older,
    };
    let mut results = Vec::new();
    for network in [Network::IPV4, Network::BOTH, Network::IPV6] {
        let programs = programs.iter().copied();
        let programs: Vec<_> = programs.filter(|it| network_of(it) == network).collect();
        if programs.is_empty() {
            continue;
        }
        if !network.is_possible() {
            let why = "this machine has no IPv6".to_owned();
            println!("SKIPPED: {why}");
            let test = format!("the tests on a Kubernetes of {network:?}");
            report.tally.skipped.push(Skipped { test, why });
            continue;
        }
        results.push(tested.run(network, &programs, report));
        results.push(report.step("kube down", |_| kube::down()));
    }
    results.push(report.step("what is left", |_| nothing_is_left(&before)));
    let failures = results.into_iter().filter_map(anyhow::Result::err);
    let failures: Vec<String> = failures.map(|error| format!("{error:#}")).collect();
    anyhow::ensure!(failures.is_empty(), "{}", failures.join(" "));
    Ok(report.tests())
}

/// What is tested, and for how long.
struct Tested<'a> {
    context: &'a Context,
    release: Release,
    images: Images,
    /// How long the API server stands still.
    away: Duration,
    older: Option<&'a OlderRelease>,
}

impl Tested<'_> {
    /// Runs these programs on a Kubernetes that it starts, and leaves up.
    fn run(
        &self,
        network: Network,
        programs: &[&TestProgram],
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let context = self.context;
        let kube = report.step("kube up", |_| {
            kube::up(context.root(), self.release, network, 3)
        })?;
        report.step("images", |_| {
            self.images.archives.iter().try_for_each(|it| kube.load(it))
        })?;
        let mut variables = variables(context, &kube, self.away, report)?;
        if let Some(older) = self.older {
            let chart = older.chart.display().to_string();
            variables.push(("PERCOLATOR_E2E_OLDER_CHART", chart));
            variables.push(("PERCOLATOR_E2E_OLDER_IMAGE", OLDER_IMAGE.to_owned()));
        }
        let how = unit::RunMode {
            arguments: &["--nocapture", "--test-threads=1"],
            variables,
            limit: LIMIT + self.away,
        };
        unit::run_each(programs, &how, report, |program| {
            format!("--e2e {}", program.name)
        })
    }
}

/// Archives of images, which go with the value.
struct Images {
    archives: Vec<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Images {
    /// Of these programs.
    fn make(
        context: &Context,
        programs: &Path,
        older: Option<&OlderRelease>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for images")?;
        let mut archives = Vec::new();
        let ours = [IMAGE, OTHER_IMAGE].map(|name| (name, programs));
        let older = older.map(|it| (OLDER_IMAGE, &*it.programs));
        for (name, programs) in ours.into_iter().chain(older) {
            let archive = folder.path().join(format!("{}.tar", archives.len()));
            image::make(context, programs, name, &archive)?;
            archives.push(archive);
        }
        let archive = folder.path().join("measure.tar");
        handler_image(context, programs, &archive)?;
        archives.push(archive);
        Ok(Self {
            archives,
            _folder: folder,
        })
    }
}

/// Makes the image of an observer whose program is a script of the shell, as docs/kubernetes.md says it: the program, a shell,
/// and `percolator`.
fn handler_image(context: &Context, programs: &Path, archive: &Path) -> anyhow::Result<()> {
    let image = oci::Image::new(HANDLER_IMAGE, "/usr/local/bin/measure")?;
    let percolator = programs.join("percolator");
    for (file, name) in [
        (Path::new("/bin/sh"), "sh"),
        (Path::new("/bin/sleep"), "sleep"),
        (&percolator, "percolator"),
    ] {
        image.program(file, &format!("/usr/local/bin/{name}"))?;
        image.libraries_of(file)?;
    }
    // The script says by which shell it is run.
    image.link("/bin/sh", "../usr/local/bin/sh")?;
    let script = context.root().join("e2e/testdata/measure.sh");
    let script = fs::read_to_string(&script).with_context(|| script.display().to_string())?;
    image.script(&script, "/usr/local/bin/measure")?;
    image.write(archive)?;
    Ok(())
}

/// The environment variables that describe the Kubernetes to the tests.
fn variables(
    context: &Context,
    kube: &kube::Kube,
    api_server_away: Duration,
    report: &mut Report,
) -> anyhow::Result<Vec<(&'static str, String)>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [kube.programs.of("kubectl"), kube.programs.helm()];
    let folders = folders.iter().filter_map(|program| program.parent());
    let folders = folders
        .map(ToOwned::to_owned)
        .chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders)?;
    let path = path.into_string().ok().context("PATH isn't UTF-8")?;
    let mut variables = vec![
        ("KUBECONFIG", kube.kubeconfig().display().to_string()),
        ("KUBECACHEDIR", kube.cache().display().to_string()),
        ("PERCOLATOR_E2E_IMAGE", IMAGE.to_owned()),
        ("PERCOLATOR_E2E_OTHER_IMAGE", OTHER_IMAGE.to_owned()),
        ("PERCOLATOR_E2E_HANDLER_IMAGE", HANDLER_IMAGE.to_owned()),
        (
            "PERCOLATOR_E2E_API_SERVER_AWAY_SECONDS",
            api_server_away.as_secs().to_string(),
        ),
        ("PATH", path),
    ];
    if api_server_away > API_SERVER_AWAY {
        variables.push(("PERCOLATOR_E2E_LONG", "1".to_owned()));
    }
    let definitions = kube.programs.definitions().display().to_string();
    variables.push(("PERCOLATOR_E2E_DEFINITIONS", definitions));
    // Of the same package.
    let promtool = report.step("prometheus", |_| debian::PROMTOOL.find(context));
    variables.extend(promtool.map(|tool| {
        let prometheus = tool.with_file_name("prometheus");
        ("PERCOLATOR_PROMETHEUS", prometheus.display().to_string())
    }));
    let adapter = report.step("autoscalers' metrics", |_| {
        kube::programs::prometheus_adapter(context.root())
    });
    let policies = report.step("network policies", |_| {
        kube::programs::network_policies(context.root())
    });
    for (variable, program) in [
        ("PERCOLATOR_PROMETHEUS_ADAPTER", adapter),
        ("PERCOLATOR_NETWORK_POLICIES", policies),
    ] {
        match program {
            Ok(program) => variables.push((variable, program.display().to_string())),
            // The test that needs it says that it skips.
            Err(why) => println!("there is no {variable}: {why:#}"),
        }
    }
    Ok(variables)
}

/// The machine is as it was before, but for what others did meanwhile.
fn nothing_is_left(before: &Traces) -> anyhow::Result<()> {
    let differences = before.wait_until_as_before();
    for difference in &differences.of_others {
        println!("  of others: {difference}");
    }
    let differences = differences.ours;
    for difference in &differences {
        println!("  {difference}");
    }
    match kube::traces::other_containers() {
        Some(socket) if !differences.is_empty() => {
            println!("not counted: containers of {socket} come and go meanwhile");
        }
        _ => anyhow::ensure!(
            differences.is_empty(),
            "after `kube down` there is something left on the machine: {}",
            differences.join("; ")
        ),
    }
    Ok(())
}
