package k8s_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// mount is a directory or file of the host at a place in a container.
type mount struct {
	from, at string
	readOnly bool
}

// container is one run of a container as a process.
type container struct {
	cmd     *exec.Cmd
	root    string
	started time.Time
	done    chan struct{}
	code    int
}

// enter makes the root of a container and becomes its program. $1 has the lower layers. $2 is the directory of the container.
// $3 is the user. $4 is "ro" or "rw". The mounts follow as FROM AT MODE up to "--". The command is at the end.
const enter = `set -e
layers=$1 dir=$2 user=$3 mode=$4; shift 4
mkdir -p $dir/upper $dir/work $dir/root
mount -t overlay overlay -o lowerdir=$layers,upperdir=$dir/upper,workdir=$dir/work $dir/root
for system in proc dev sys; do mount --rbind /$system $dir/root/$system; done
while [ "$1" != -- ]; do
  # Links on the way, such as /var/run, lead to places in the root and not on the host.
  at=$dir/root$(chroot "$dir/root" readlink -m "$2")
  if [ -d "$1" ]; then mkdir -p "$at"; else mkdir -p "$(dirname "$at")"; touch "$at"; fi
  mount --bind "$1" "$at"
  [ "$3" = rw ] || mount -o remount,bind,ro "$at"
  shift 3
done
shift
[ $mode = rw ] || mount -o remount,ro "$dir/root"
exec chroot --userspec="$user" "$dir/root" "$@"`

// startContainer starts the container c of a pod.
func startContainer(dir, image string, pod *corev1.Pod, c *corev1.Container, env, command []string, mounts []mount, log io.Writer) (*container, error) {
	user, mode := "0:0", "rw"
	if s := pod.Spec.SecurityContext; s != nil && s.RunAsUser != nil && s.RunAsGroup != nil {
		user = fmt.Sprintf("%d:%d", *s.RunAsUser, *s.RunAsGroup)
	}
	if s := c.SecurityContext; s != nil && s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem {
		mode = "ro"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	args := []string{"--mount", "--propagation", "private", "sh", "-c", enter, "enter", image + ":/", dir, user, mode}
	for _, m := range mounts {
		args = append(args, m.from, m.at, map[bool]string{true: "ro", false: "rw"}[m.readOnly])
	}
	run := &container{cmd: exec.Command("unshare", append(append(args, "--"), command...)...), root: filepath.Join(dir, "root"), started: time.Now(), done: make(chan struct{})}
	run.cmd.Env, run.cmd.Stdout, run.cmd.Stderr = env, log, log
	run.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := run.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = run.cmd.Wait()
		run.code = run.cmd.ProcessState.ExitCode()
		close(run.done)
	}()
	return run, nil
}

func (c *container) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// signal sends a signal to the program, and with kill to its whole group.
func (c *container) signal(s syscall.Signal) {
	if !c.ended() {
		pid := c.cmd.Process.Pid
		if s == syscall.SIGKILL {
			pid = -pid
		}
		_ = syscall.Kill(pid, s)
	}
}

// exec prepares a command inside of the container.
func (c *container) exec(user string, env []string, command ...string) *exec.Cmd {
	args := append([]string{"--target", fmt.Sprint(c.cmd.Process.Pid), "--mount", "chroot", "--userspec=" + user, c.root}, command...)
	cmd := exec.Command("nsenter", args...)
	cmd.Env = env
	return cmd
}

// expand replaces $(NAME) by the value of the environment variable, as Kubernetes does.
func expand(words []string, env []string) []string {
	var pairs []string
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		pairs = append(pairs, "$("+name+")", value)
	}
	replacer := strings.NewReplacer(pairs...)
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = replacer.Replace(w)
	}
	return out
}
