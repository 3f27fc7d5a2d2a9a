// Package safedir accesses files in a directory that belongs to this process's user. It guarantees that no access leaves the
// directory, and that a file under its final name is complete. It opens neither special files, nor files and directories of
// other users, nor those that everybody may write to. It trusts the group of a directory that the group may write to.
package safedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
)

// ErrUnsafe is the error for a directory in which other users can write files.
var ErrUnsafe = errors.New("the directory is not safe to use")

// ErrForeign is the error for a file whose content other users may have chosen.
var ErrForeign = errors.New("the file is not safe to use")

// Open opens a directory. It refuses a directory in which other users can write, because they could choose a trainer's data.
func Open(dir string) (*os.Root, error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if err := safe(dir, info); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	opened, err := root.Stat(".")
	if err != nil || !os.SameFile(info, opened) {
		return nil, errors.Join(fmt.Errorf("%w: %s was replaced while it was opened", ErrUnsafe, dir), root.Close())
	}
	return root, nil
}

// owner returns the user of a file or directory that belongs neither to this process's user nor to root.
func owner(info fs.FileInfo) (user uint32, foreign bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return stat.Uid, stat.Uid != 0 && int(stat.Uid) != os.Geteuid()
}

// Foreign returns ErrForeign for a file that belongs neither to this process's user nor to root.
func Foreign(info fs.FileInfo) error {
	if user, foreign := owner(info); foreign {
		return fmt.Errorf("%w: %s belongs to user %d, this process runs as user %d; all processes that share a directory must run as one user", ErrForeign, info.Name(), user, os.Geteuid())
	}
	return nil
}

func safe(dir string, info fs.FileInfo) error {
	user, foreign := owner(info)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%w: %s is a symbolic link; give the directory itself", ErrUnsafe, dir)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory", ErrUnsafe, dir)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("%w: %s is writable by everybody; remove that permission (chmod o-w)", ErrUnsafe, dir)
	case foreign:
		return fmt.Errorf("%w: %s belongs to user %d, this process runs as user %d; give it a directory of its own", ErrUnsafe, dir, user, os.Geteuid())
	}
	return nil
}

// safeFile returns the description of an open file, and an error if its content may come from other users.
func safeFile(file *os.File) (fs.FileInfo, error) {
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", info.Name())
	case info.Mode().Perm()&0o002 != 0:
		return nil, fmt.Errorf("%w: %s is writable by everybody", ErrForeign, info.Name())
	}
	return info, Foreign(info)
}

// OpenFile opens a regular file for reading and returns its size. It refuses files of other users, and FIFOs: a plain open would
// wait for a writer.
func OpenFile(root *os.Root, name string) (*os.File, int64, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := safeFile(file)
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// Create creates a file. An existing file is an error. So is a file that OpenFile would refuse, as on a file system that gives new
// files to another user.
func Create(root *os.Root, name string) (*os.File, error) {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := safeFile(file); err != nil {
		return nil, errors.Join(err, file.Close(), Remove(root, name))
	}
	return file, nil
}

// Write writes a file atomically: it writes and syncs a temporary file in the same directory, and renames it. After a crash of the process
// or the host, the file is either complete or absent.
func Write(root *os.Root, name, temporary string, parts ...[]byte) error {
	if err := Replace(root, name, temporary, parts...); err != nil {
		return err
	}
	return Sync(root, path.Dir(name))
}

// Replace is Write without making the name durable: after a crash of the host, the earlier file may be there.
func Replace(root *os.Root, name, temporary string, parts ...[]byte) error {
	err := put(root, temporary, parts)
	if err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, Remove(root, temporary))
	}
	return nil
}

func put(root *os.Root, name string, parts [][]byte) (err error) {
	file, err := Create(root, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for _, part := range parts {
		if _, err := file.Write(part); err != nil {
			return err
		}
	}
	return file.Sync()
}

// Remove deletes a file. A missing file is no error.
func Remove(root *os.Root, name string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Sync makes the names in a directory durable, and the names of the directories that lead to it from the root.
func Sync(root *os.Root, dir string) error {
	for ; ; dir = path.Dir(dir) {
		opened, err := root.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(opened.Sync(), opened.Close()); err != nil {
			return err
		}
		if dir == "." {
			return nil
		}
	}
}
