package cache

import (
	"errors"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// directAlign is a multiple of what file systems ask of offsets, lengths and memory of a direct read.
	directAlign = 4096
	// leastDirect is the size of the smallest file that is read directly.
	leastDirect = blockBytes
	// mostAhead is how many blocks of a file are read at once, and aheadBytes is the most that they have together. A larger block is read
	// alone.
	mostAhead, aheadBytes = 4, mostAhead * (blockBytes + directAlign)
	// mostRemembered bounds the files of which a directory remembers how they were read.
	mostRemembered = 1 << 16
)

// direct is a file whose reads bypass the page cache. They transfer into the caller's memory, which saves the copy: on fast
// media, that copy is most of what a read costs.
type direct struct {
	*os.File
	size int64
}

// ReadAt implements io.ReaderAt. The offset, the length and the address of p are multiples of directAlign. The last read of a file
// may be shorter, with io.EOF. If the medium refuses a direct read, this read and later ones use the page cache.
func (f *direct) ReadAt(p []byte, off int64) (n int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	for refused := false; n < len(p) && off+int64(n) < f.size; {
		got, failed := 0, error(nil)
		// Control lets several reads run at once.
		if err := conn.Control(func(fd uintptr) { got, failed = unix.Pread(int(fd), p[n:], off+int64(n)) }); err != nil {
			return n, err
		}
		switch {
		case errors.Is(failed, unix.EINTR):
		case errors.Is(failed, unix.EINVAL) && !refused:
			refused = true
			if err := conn.Control(func(fd uintptr) { failed = setDirect(int(fd), false) }); err != nil || failed != nil {
				return n, errors.Join(err, failed)
			}
		case failed != nil:
			return n, os.NewSyscallError("pread", failed)
		case got == 0:
			return n, io.EOF
		default:
			n += got
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// alignedTo returns size bytes of memory that begin at a multiple of directAlign. The memory has directAlign bytes more than that.
func alignedTo(memory []byte, size int) []byte {
	over := int(uintptr(unsafe.Pointer(unsafe.SliceData(memory))) % directAlign)
	begin := (directAlign - over) % directAlign
	return memory[begin : begin+size]
}

// how says how a file is read.
type how uint8

const (
	// A file is read directly first. Its pages would displace others, and may never be read again.
	_ how = iota
	// kept is how a file is read the second time: its pages stay in the page cache if there is room for them.
	kept
	// displaced is a file whose pages have left the page cache again. It is read directly from then on.
	displaced
)

// history remembers how the files of a directory were read. A file whose pages are in the page cache is always read from there.
type history struct {
	mu   sync.Mutex
	next map[string]how
}

// choose returns whether a file that is not in the page cache is read directly.
func (h *history) choose(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.next[name]
	if h.next == nil || len(h.next) >= mostRemembered {
		h.next = map[string]how{}
	}
	h.next[name] = min(now+1, displaced)
	return now != kept
}

// openDirect makes reads of an open file direct, if that is faster. It returns the file otherwise.
func (h *history) openDirect(file *os.File, name string, size int64) Readable {
	if size < leastDirect {
		return file
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return file
	}
	made := false
	if err := conn.Control(func(fd uintptr) {
		made = local(int(fd)) && !paged(int(fd), size) && h.choose(name) && setDirect(int(fd), true) == nil
	}); err != nil || !made {
		return file
	}
	return &direct{file, size}
}

// local returns whether a file lies on a file system of this host that is known for fast direct reads. A remote one needs the
// kernel to read ahead.
func local(fd int) bool {
	var at unix.Statfs_t
	return unix.Fstatfs(fd, &at) == nil && (at.Type == unix.EXT4_SUPER_MAGIC || at.Type == unix.XFS_SUPER_MAGIC)
}

// paged returns whether most of a file is in the page cache, or whether this is unknown: before Linux 6.5.
func paged(fd int, size int64) bool {
	var found unix.Cachestat_t
	err := unix.Cachestat(uint(fd), &unix.CachestatRange{Len: uint64(size)}, &found, 0)
	return err != nil || int64(found.Cache)*int64(os.Getpagesize()) >= size/2
}

// setDirect switches whether reads of an open file are direct. Not every file system can do that.
func setDirect(fd int, on bool) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if flags &^= unix.O_DIRECT; on {
		flags |= unix.O_DIRECT
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return err
}
