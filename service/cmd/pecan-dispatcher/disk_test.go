package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// smallDisk mounts a file system in memory of this many bytes.
func smallDisk(t *testing.T, bytes int, options ...string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may mount a small disk")
	}
	dir := t.TempDir()
	words := strings.Join(append([]string{fmt.Sprint("size=", bytes)}, options...), ",")
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", words, "none", dir).CombinedOutput(); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// D5: others fill the disk of a dispatcher that serves. It refuses requests with the reason, continues to run, and accepts them when there is space again.
func TestD5DispatcherSurvivesAFullDisk(t *testing.T) {
	disk := smallDisk(t, 64<<20)
	p := launch(t, "--listen", "127.0.0.1:0", "--work-dir", filepath.Join(disk, "work"), "--work-dir-reserve-bytes", fmt.Sprint(16<<20))
	api, ctx := p.client()
	graph, err := os.ReadFile(filepath.Join("..", "..", "dispatcher", "testdata", "range.graph"))
	if err != nil {
		t.Fatal(err)
	}
	dataset := register(t, api, ctx, graph)
	filler := filepath.Join(disk, "filler")
	// More than there is room for: some of it is written.
	if err := os.WriteFile(filler, make([]byte, 63<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk takes everything: %v", err)
	}
	create := &pecanv1.CreateJobRequest{RequestId: "r", ClientId: "c", DatasetId: dataset, JobName: "train"}
	if _, err := api.CreateJob(ctx, create); reason.From(err).Reason != reason.StoreFull {
		t.Fatalf("on a full disk: %v", err)
	}
	if status, err := api.Status(ctx, &pecanv1.StatusRequest{}); err != nil || len(status.Datasets) != 1 {
		t.Fatalf("%v %v", status, err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := api.CreateJob(ctx, create)
		if err == nil {
			break
		}
		if reason.From(err).Reason != reason.StoreFull {
			t.Fatalf("with room again: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.ended(); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr.String())
	}
}

// D6: a disk that refuses writes ends the process with an error. The process acknowledges nothing that is not stored.
func TestD6DispatcherEndsWhenItsDiskFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	p := launch(t, "--listen", "127.0.0.1:0", "--work-dir", dir)
	api, ctx := p.client()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	session, err := api.WorkerSession(ctx)
	if err == nil {
		err = session.Send(&pecanv1.WorkerMessage{})
	}
	if err != nil {
		t.Fatal(err)
	}
	graph, err := os.ReadFile(filepath.Join("..", "..", "dispatcher", "testdata", "range.graph"))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := api.RegisterDataset(ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec := &pecanv1.DatasetSpec{Components: []*pecanv1.ComponentSpec{{Dtype: 9}}}
	// The dispatcher may end before everything is sent.
	_ = stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Header_{Header: &pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: int64(len(graph))}}})
	_ = stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Chunk{Chunk: graph}})
	if response, err := stream.CloseAndRecv(); err == nil {
		t.Fatalf("acknowledged %v without a disk", response)
	}
	if code := p.ended(); code != 1 {
		t.Fatalf("exit code %d: %s", code, p.stderr.String())
	}
}

// D7: a directory that cannot be used ends the start with one line and exit code 1, and nothing is created.
func TestD7DispatcherRefusesUnusableDirectories(t *testing.T) {
	base := t.TempDir()
	file, link, foreign := filepath.Join(base, "file"), filepath.Join(base, "link"), filepath.Join(base, "foreign")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink("nowhere", link), os.Mkdir(foreign, 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dir      func(t *testing.T) string
		asNobody bool
		want     string
	}{
		"a missing parent":     {func(*testing.T) string { return filepath.Join(base, "no", "work") }, false, "the parent directory does not exist"},
		"a file":               {func(*testing.T) string { return file }, false, "it is not a directory"},
		"a link to nowhere":    {func(*testing.T) string { return link }, false, "a link to a file that does not exist"},
		"a read-only disk":     {func(t *testing.T) string { return filepath.Join(smallDisk(t, 128<<20, "ro"), "work") }, false, "cannot be written by this user"},
		"a full disk":          {func(t *testing.T) string { return filepath.Join(smallDisk(t, 1<<20), "work") }, false, "kept in reserve"},
		"another's directory":  {func(*testing.T) string { return foreign }, true, "cannot be written by this user"},
		"below another's":      {func(*testing.T) string { return filepath.Join(foreign, "work") }, true, "cannot be written by this user"},
		"a quota of no inodes": {func(t *testing.T) string { return filepath.Join(smallDisk(t, 128<<20, "nr_inodes=2"), "work") }, false, "no space left"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.dir(t)
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, "--work-dir", dir)
			if c.asNobody {
				if os.Getuid() != 0 {
					t.Skip("only root may become another user")
				}
				// The directories of this test only; what lies above them is not ours to open.
				if err := errors.Join(os.Chmod(filepath.Dir(program), 0o755), os.Chmod(base, 0o755), os.Chmod(filepath.Dir(base), 0o755)); err != nil {
					t.Fatal(err)
				}
				for at := os.TempDir(); at != "/"; at = filepath.Dir(at) {
					if info, err := os.Stat(at); err != nil || info.Mode().Perm()&1 == 0 {
						t.Skipf("another user does not come to %s (%v)", at, err)
					}
				}
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), c.want) || !strings.Contains(stderr.String(), dir) {
				t.Fatalf("%v: %s", err, stderr.String())
			}
			if names, _ := os.ReadDir(dir); len(names) > 0 {
				t.Errorf("%v was made", names)
			}
		})
	}
}

// D8: a second dispatcher on a directory is refused, and the first one serves on.
func TestD8ASecondDispatcherIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	p := launch(t, "--listen", "127.0.0.1:0", "--work-dir", dir)
	fails(t, dir+": another dispatcher uses this directory", "--listen", "127.0.0.1:0", "--work-dir", dir)
	api, ctx := p.client()
	if _, err := api.Status(ctx, &pecanv1.StatusRequest{}); err != nil {
		t.Fatal(err)
	}
}
