//! The archive of the kernel's first files: cpio's `newc` format, uncompressed.

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive under construction. A folder must be added before its contents.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, &[]);
    }

    /// Adds an executable file.
    pub fn program(&mut self, path: &str, contents: &[u8]) {
        self.entry(path, PROGRAM, contents);
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(contents.len()).expect("files of an initramfs are small");
        let name_size = u32::try_from(path.len() + 1).expect("names are short");
        // inode, mode, owner, group, links, time, size, four device numbers, name's size, checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn writes_the_newc_format() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.program("bin/x", b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let header = format!("070701{:08x}{:08x}", 1, FOLDER);
        assert!(bytes.starts_with(header.as_bytes()));
        // The folder's header and name take 114 bytes; two more align them.
        let second = &bytes[116..];
        assert_eq!(&second[..6], b"070701");
        assert_eq!(&second[54..62], b"00000005");
        assert_eq!(&second[110..116], b"bin/x\0");
        assert_eq!(&second[116..124], b"hello\0\0\0");
        assert!(bytes.windows(11).any(|window| window == b"TRAILER!!!\0"));
    }
}
