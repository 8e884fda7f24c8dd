//! Calls after which the C library, the kernel or another program uses descriptors without coming here. Connections that they may use
//! become streams of the kernel's before, or get tickets.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};

use wave_posix::demotion::Cause;

use super::exec::environ;
use super::exec_target::{Named, has_library};
use super::files::demote;
use super::next;
use super::process::with;
use crate::shared::confine;

/// The program of system(3) and popen(3).
const SHELL: &CStr = c"/bin/sh";

/// stdio reads and writes inside the C library.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    demote(fd, Cause::CLibrary);
    next!(fdopen(fd => c_int, mode => *const c_char) -> *mut c_void)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vdprintf(
    fd: c_int,
    format: *const c_char,
    words: *mut c_void,
) -> c_int {
    demote(fd, Cause::CLibrary);
    next!(vdprintf(fd => c_int, format => *const c_char, words => *mut c_void) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    words: *mut c_void,
) -> c_int {
    demote(fd, Cause::CLibrary);
    next!(__vdprintf_chk(
        fd => c_int,
        flag => c_int,
        format => *const c_char,
        words => *mut c_void,
    ) -> c_int)
}

/// The shell gets all descriptors without FD_CLOEXEC.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    // SAFETY: the path is a string.
    unsafe { pass(Named::File(SHELL.as_ptr())) };
    next!(system(command => *const c_char) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: the path is a string.
    unsafe { pass(Named::File(SHELL.as_ptr())) };
    next!(popen(command => *const c_char, mode => *const c_char) -> *mut c_void)
}

/// Passes the sockets on to a program with this process's environment.
///
/// # Safety
/// As for [`has_library`].
unsafe fn pass(program: Named) {
    // SAFETY: as for this function; nothing changes the environment meanwhile.
    let has_library = || unsafe { has_library(program, environ) };
    with(|sockets| drop(sockets.pass_over_exec(true, has_library)));
}

/// A filter may kill the process for a system call that this library makes.
///
/// Called before a system call of this number, whose first argument is `word`.
pub fn before_filter(number: c_long, word: usize) {
    const MODE_FILTER: usize = libc::SECCOMP_SET_MODE_FILTER as usize;
    const MODE_STRICT: usize = libc::SECCOMP_SET_MODE_STRICT as usize;
    let sets_filter = match number {
        libc::SYS_prctl => word == libc::PR_SET_SECCOMP as usize,
        libc::SYS_seccomp => matches!(word, MODE_FILTER | MODE_STRICT),
        _ => false,
    };
    if sets_filter {
        confine();
        with(|sockets| sockets.demote_all(Cause::Sandbox));
    }
}

/// Symbols with a variable number of arguments. Each calls a function with its first argument, and then jumps to the next library's
/// symbol with all arguments as they were.
#[cfg(target_arch = "x86_64")]
mod variadic {
    use std::ffi::{c_char, c_int, c_void};

    use super::{Cause, Named, demote, pass};
    use crate::interpose::next::Symbol;

    static DPRINTF: Symbol = Symbol::new(c"dprintf");
    static DPRINTF_CHK: Symbol = Symbol::new(c"__dprintf_chk");
    static EXECL: Symbol = Symbol::new(c"execl");
    static EXECLE: Symbol = Symbol::new(c"execle");
    static EXECLP: Symbol = Symbol::new(c"execlp");

    extern "C-unwind" fn before_dprintf(fd: c_int) -> *mut c_void {
        demote(fd, Cause::CLibrary);
        DPRINTF.get()
    }

    extern "C-unwind" fn before_dprintf_chk(fd: c_int) -> *mut c_void {
        demote(fd, Cause::CLibrary);
        DPRINTF_CHK.get()
    }

    unsafe extern "C-unwind" fn before_execl(file: *const c_char) -> *mut c_void {
        // SAFETY: execl(3)'s contract.
        unsafe { pass(Named::File(file)) };
        EXECL.get()
    }

    /// Takes its environment for this process's.
    unsafe extern "C-unwind" fn before_execle(file: *const c_char) -> *mut c_void {
        // SAFETY: execle(3)'s contract.
        unsafe { pass(Named::File(file)) };
        EXECLE.get()
    }

    unsafe extern "C-unwind" fn before_execlp(file: *const c_char) -> *mut c_void {
        // SAFETY: execlp(3)'s contract.
        unsafe { pass(Named::Command(file)) };
        EXECLP.get()
    }

    /// `forward!(name, before)`: a symbol that calls `before`, and jumps to the address that it returns.
    macro_rules! forward {
        ($name:ident, $before:ident) => {
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name() {
                // The System V ABI passes arguments in six registers, eight vector registers whose number is in al, and on the stack,
                // which is as the caller left it when the jump is made. 200 bytes and the return address keep it aligned.
                std::arch::naked_asm!(
                    ".cfi_startproc",
                    "sub rsp, 200",
                    ".cfi_adjust_cfa_offset 200",
                    "mov [rsp], rdi",
                    "mov [rsp + 8], rsi",
                    "mov [rsp + 16], rdx",
                    "mov [rsp + 24], rcx",
                    "mov [rsp + 32], r8",
                    "mov [rsp + 40], r9",
                    "mov [rsp + 48], rax",
                    "movaps [rsp + 64], xmm0",
                    "movaps [rsp + 80], xmm1",
                    "movaps [rsp + 96], xmm2",
                    "movaps [rsp + 112], xmm3",
                    "movaps [rsp + 128], xmm4",
                    "movaps [rsp + 144], xmm5",
                    "movaps [rsp + 160], xmm6",
                    "movaps [rsp + 176], xmm7",
                    "call {before}",
                    "mov r11, rax",
                    "mov rdi, [rsp]",
                    "mov rsi, [rsp + 8]",
                    "mov rdx, [rsp + 16]",
                    "mov rcx, [rsp + 24]",
                    "mov r8, [rsp + 32]",
                    "mov r9, [rsp + 40]",
                    "mov rax, [rsp + 48]",
                    "movaps xmm0, [rsp + 64]",
                    "movaps xmm1, [rsp + 80]",
                    "movaps xmm2, [rsp + 96]",
                    "movaps xmm3, [rsp + 112]",
                    "movaps xmm4, [rsp + 128]",
                    "movaps xmm5, [rsp + 144]",
                    "movaps xmm6, [rsp + 160]",
                    "movaps xmm7, [rsp + 176]",
                    "add rsp, 200",
                    ".cfi_adjust_cfa_offset -200",
                    "jmp r11",
                    ".cfi_endproc",
                    before = sym $before,
                )
            }
        };
    }

    forward!(dprintf, before_dprintf);
    forward!(__dprintf_chk, before_dprintf_chk);
    forward!(execl, before_execl);
    forward!(execle, before_execle);
    forward!(execlp, before_execlp);
}
