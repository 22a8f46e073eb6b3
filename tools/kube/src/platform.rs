//! The kinds of machines that images are made for, and what programs for another kind than this machine's are built with: Debian's
//! cross compilers.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, bail};

use crate::cmd::Cmd;

/// Linux on a kind of processor, by its name in images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// 64 bits of x86.
    Amd64,
    /// 64 bits of ARM.
    Arm64,
}

impl Platform {
    /// This machine's.
    pub fn native() -> anyhow::Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("images for {other} can't be made"),
        }
    }

    /// Whether it is this machine's.
    pub fn is_native(self) -> bool {
        Self::native().is_ok_and(|native| native == self)
    }

    /// As image indexes name it.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// As Rust names it.
    pub fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// As Debian names it, in names of programs and folders.
    fn triplet(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// A program of the compiler, such as `strip`, that knows this platform's files.
    pub fn tool(self, name: &str) -> String {
        if self.is_native() {
            name.to_owned()
        } else {
            format!("{}-{name}", self.triplet())
        }
    }

    /// Makes sure of what programs for this platform are built with, and gives the variables by which cargo finds it.
    pub fn toolchain(self) -> anyhow::Result<Vec<(String, String)>> {
        if self.is_native() {
            return Ok(Vec::new());
        }
        let compiler = self.tool("gcc");
        if !Cmd::new(&compiler).arg("--version").works() {
            bail!(
                "there is no {compiler}, which links programs for {self}. Debian and Ubuntu: \
                 apt-get install gcc-{triplet} libc6-dev-{architecture}-cross",
                triplet = self.triplet(),
                architecture = self.architecture()
            );
        }
        Cmd::new("rustup")
            .args(["target", "add", self.target()])
            .run()
            .context("Rust's library for this platform is added by rustup")?;
        let target = self.target().to_uppercase().replace('-', "_");
        Ok(vec![(format!("CARGO_TARGET_{target}_LINKER"), compiler)])
    }

    /// The shared libraries that a program for another platform needs: where each lies on this machine, and where it has to lie there.
    /// The loader searches for them in a folder of its own.
    pub fn libraries(self, program: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
        let folder = PathBuf::from(format!("/usr/{}/lib", self.triplet()));
        let mut libraries: Vec<(PathBuf, String)> = Vec::new();
        let mut unread = vec![program.to_owned()];
        while let Some(file) = unread.pop() {
            let headers = Cmd::new(self.tool("objdump"))
                .arg("-p")
                .arg(&file)
                .silent_output()?;
            for name in needed(&headers) {
                let from = folder.join(name);
                if libraries.iter().any(|(known, _)| *known == from) {
                    continue;
                }
                let to = if name.starts_with("ld-linux") {
                    format!("/lib/{name}")
                } else {
                    format!("/lib/{}/{name}", self.triplet())
                };
                unread.push(from.clone());
                libraries.push((from, to));
            }
        }
        Ok(libraries)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "linux/{}", self.architecture())
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Amd64, Self::Arm64];
        let found = known.into_iter().find(|it| it.to_string() == text);
        found.ok_or_else(|| {
            let known = known.map(|it| it.to_string()).join(" and ");
            format!("images can be made for {known}")
        })
    }
}

/// The libraries that a file needs, by what `objdump -p` says.
fn needed(headers: &str) -> impl Iterator<Item = &str> {
    let lines = headers.lines().map(str::trim);
    lines.filter_map(|line| Some(line.strip_prefix("NEEDED")?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_have_the_names_of_images() {
        assert_eq!("linux/arm64".parse(), Ok(Platform::Arm64));
        let refused = "linux/riscv64".parse::<Platform>();
        let known = "images can be made for linux/amd64 and linux/arm64";
        assert_eq!(refused, Err(known.to_owned()));
    }

    #[test]
    fn needed_libraries_are_read_from_the_headers() {
        let headers = "\
Dynamic Section:
  NEEDED               libgcc_s.so.1
  NEEDED               ld-linux-aarch64.so.1
  INIT                 0x0000000000123456
";
        let found: Vec<&str> = needed(headers).collect();
        assert_eq!(found, ["libgcc_s.so.1", "ld-linux-aarch64.so.1"]);
    }
}
