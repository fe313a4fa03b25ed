//! Line output on the first serial port.

use core::fmt::{self, Write};

use spin::mutex::SpinMutex;
use uart_16550::backend::PioBackend;
use uart_16550::spec::registers::IER;
use uart_16550::{Config, Uart16550};

const COM1: u16 = 0x3f8;

/// `None` until [`init`], or where there is no serial port: output is dropped then.
static PORT: SpinMutex<Option<Uart16550<PioBackend>>> = SpinMutex::new(None);

fn open() -> Option<Uart16550<PioBackend>> {
    // SAFETY: COM1 is at this port on every PC, and nobody else in the guest drives it.
    let mut uart = unsafe { Uart16550::new_port(COM1) }.ok()?;
    // Received bytes would raise an interrupt that no one handles.
    uart.init(Config { interrupts: IER::empty(), ..Config::DEFAULT }).ok()?;
    Some(uart)
}

/// Opens the port. Called once, by the boot CPU.
pub(crate) fn init() {
    *PORT.lock() = open();
}

/// Gathers text so that the port gets it in few, long pieces: each access to it is an exit to the host.
struct Buffered<'a> {
    uart: &'a mut Uart16550<PioBackend>,
    text: [u8; 256],
    len: usize,
}

impl Buffered<'_> {
    fn print(uart: &mut Uart16550<PioBackend>, text: fmt::Arguments<'_>) {
        let mut out = Buffered { uart, text: [0; 256], len: 0 };
        // `write_str` below never fails; an error could only come from a Display of the caller.
        let _ = out.write_fmt(text);
        out.flush();
    }

    fn flush(&mut self) {
        self.uart.send_bytes_exact(&self.text[..self.len]);
        self.len = 0;
    }
}

impl Write for Buffered<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.len == self.text.len() {
                self.flush();
            }
            self.text[self.len] = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Prints formatted text; what one call prints is not mixed with the output of other CPUs. Not for interrupt handlers.
pub fn print(text: fmt::Arguments<'_>) {
    if let Some(uart) = PORT.lock().as_mut() {
        Buffered::print(uart, text);
    }
}

/// Prints from a panic or exception, whoever holds the port: the holder may be the code that failed.
pub(crate) fn emergency(text: fmt::Arguments<'_>) {
    // A running holder gets time to finish its line.
    for _ in 0..10_000_000 {
        if let Some(mut port) = PORT.try_lock() {
            if let Some(uart) = port.as_mut() {
                Buffered::print(uart, text);
            }
            return;
        }
        core::hint::spin_loop();
    }
    if let Some(mut uart) = open() {
        Buffered::print(&mut uart, text);
    }
}

/// A value of a machine-readable line that may contain spaces: printed in double quotes, without any inside.
#[derive(Debug)]
pub struct Quoted<T>(pub T);

impl<T: fmt::Display> fmt::Display for Quoted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct WithoutQuotes<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for WithoutQuotes<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.split_inclusive('"').try_for_each(|part| match part.strip_suffix('"') {
                    Some(before) => write!(self.0, "{before}'"),
                    None => self.0.write_str(part),
                })
            }
        }
        f.write_str("\"")?;
        write!(WithoutQuotes(f), "{}", self.0)?;
        f.write_str("\"")
    }
}

/// Prints one line on the console of the guest.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => {
        $crate::console::print(::core::format_args!("{}\n", ::core::format_args!($($arg)*)))
    };
}
