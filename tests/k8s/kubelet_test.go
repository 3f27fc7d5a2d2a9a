package k8s_test

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const nodeName = "node-1"

// kubelet is a node. It runs the first container of each pod that is bound to it.
type kubelet struct {
	plane  *plane
	images string
	hosts  string
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mutex sync.Mutex
	pods  map[types.UID]*podRun
	next  int
}

// podRun is a pod on the node. Its loop is the only user of its fields, except name, current and env.
type podRun struct {
	name     string
	current  atomic.Pointer[container]
	pod      *corev1.Pod
	ip       string
	env      []string
	run      *container
	restarts int32
	ready    bool
	started  bool
	failures int32
	reported string
	stopping time.Time
	// latest is the pod as the API server last showed it, or nil if it does not exist there.
	latest chan *corev1.Pod
}

// startKubelet registers the node and starts its loops. images has a directory for each image, with its programs.
func startKubelet(t *testing.T, p *plane, images string, cpus string) *kubelet {
	t.Helper()
	k := &kubelet{plane: p, images: images, hosts: p.path("hosts"), pods: map[types.UID]*podRun{}}
	check(t, os.WriteFile(k.hosts, nil, 0o644))
	room := corev1.ResourceList{"cpu": resource.MustParse(cpus), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110"), "ephemeral-storage": resource.MustParse("100Gi")}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{"kubernetes.io/hostname": nodeName}}, Status: corev1.NodeStatus{
		Capacity: room, Allocatable: room, Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: hostIP}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
	}}
	_, err := p.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.ended.Go(func() { k.renewLease(ctx) })
	k.ended.Go(func() { serveNames(ctx, p, k.hosts) })
	k.ended.Go(func() { k.follow(ctx) })
	t.Cleanup(func() {
		cancel()
		k.ended.Wait()
		for _, r := range k.pods {
			if run := r.container(); run != nil {
				run.signal(syscall.SIGKILL)
				<-run.done
			}
		}
	})
	return k
}

func (k *kubelet) renewLease(ctx context.Context) {
	leases := k.plane.client.CoordinationV1().Leases("kube-node-lease")
	seconds, holder := int32(40), nodeName
	for ctx.Err() == nil {
		now := metav1.NewMicroTime(time.Now())
		lease, err := leases.Get(ctx, nodeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, _ = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: nodeName},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now}}, metav1.CreateOptions{})
		} else if err == nil {
			lease.Spec.RenewTime = &now
			_, _ = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		sleep(ctx, 5*time.Second)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// follow starts a loop for each pod of the node and passes on what the API server says. While it is absent, pods run on.
func (k *kubelet) follow(ctx context.Context) {
	for ctx.Err() == nil {
		list, err := k.plane.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName})
		if err == nil {
			there := map[types.UID]*corev1.Pod{}
			for i := range list.Items {
				there[list.Items[i].UID] = &list.Items[i]
			}
			k.mutex.Lock()
			for uid, pod := range there {
				if k.pods[uid] == nil {
					k.next++
					r := &podRun{name: pod.Name, pod: pod, ip: fmt.Sprintf("10.77.%d.%d", 1+k.next/250, 1+k.next%250), latest: make(chan *corev1.Pod, 1)}
					k.pods[uid] = r
					k.ended.Go(func() { k.live(ctx, r) })
				}
			}
			for uid, r := range k.pods {
				select {
				case <-r.latest:
				default:
				}
				r.latest <- there[uid]
			}
			k.mutex.Unlock()
		}
		sleep(ctx, 250*time.Millisecond)
	}
}

// live runs a pod until it is gone.
func (k *kubelet) live(ctx context.Context, r *podRun) {
	uid := r.pod.UID
	defer func() {
		k.mutex.Lock()
		defer k.mutex.Unlock()
		if ctx.Err() == nil {
			delete(k.pods, uid)
		}
	}()
	var restartAt time.Time
	for ctx.Err() == nil {
		select {
		case latest := <-r.latest:
			if latest == nil && r.stopping.IsZero() {
				latest = r.pod.DeepCopy()
				now := metav1.Now()
				latest.DeletionTimestamp = &now
			}
			if latest != nil {
				r.pod = latest
			}
		default:
		}
		phase := corev1.PodRunning
		switch {
		case r.pod.DeletionTimestamp != nil:
			if k.stop(ctx, r) {
				return
			}
		case r.run == nil && time.Now().After(restartAt):
			if err := k.start(ctx, r); err != nil {
				k.report(ctx, r, corev1.PodPending, err.Error())
				restartAt = time.Now().Add(time.Second)
				sleep(ctx, 200*time.Millisecond)
				continue
			}
		case r.run != nil && r.run.ended():
			r.ready, r.started = false, false
			switch policy := r.pod.Spec.RestartPolicy; {
			case policy == corev1.RestartPolicyNever && r.run.code != 0:
				phase = corev1.PodFailed
			case policy != corev1.RestartPolicyAlways && r.run.code == 0:
				phase = corev1.PodSucceeded
			default:
				r.run, restartAt = nil, time.Now().Add(pauseBefore(r.restarts))
				r.restarts++
			}
		case r.run != nil:
			k.probe(r)
		}
		k.report(ctx, r, phase, "")
		sleep(ctx, 200*time.Millisecond)
	}
}

// pauseBefore returns how long a container waits for its next start. As in Kubernetes, the pause is ten seconds after the
// first restart, and twice as long each time.
func pauseBefore(restarts int32) time.Duration {
	if restarts == 0 {
		return time.Second
	}
	return min(10*time.Second<<(restarts-1), 5*time.Minute)
}

// stop sends SIGTERM, after the grace period SIGKILL, and reports true when the pod is gone.
func (k *kubelet) stop(ctx context.Context, r *podRun) bool {
	grace := 30 * time.Second
	if g := r.pod.DeletionGracePeriodSeconds; g != nil {
		grace = time.Duration(*g) * time.Second
	}
	if r.stopping.IsZero() {
		r.stopping, r.ready = time.Now(), false
		if r.run != nil {
			r.run.signal(syscall.SIGTERM)
		}
	}
	if r.run != nil && !r.run.ended() {
		if time.Since(r.stopping) > grace {
			r.run.signal(syscall.SIGKILL)
		}
		return false
	}
	none := int64(0)
	err := k.plane.client.CoreV1().Pods(r.pod.Namespace).Delete(ctx, r.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &none, Preconditions: &metav1.Preconditions{UID: &r.pod.UID}})
	return err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err)
}

func (k *kubelet) dir(r *podRun, name string) string {
	return k.plane.path(filepath.Join("pods", string(r.pod.UID), name))
}

func (k *kubelet) log(pod string) string { return k.plane.path("logs/" + pod + ".log") }

func (k *kubelet) start(ctx context.Context, r *podRun) error {
	c := &r.pod.Spec.Containers[0]
	name, _, _ := strings.Cut(path.Base(c.Image), ":")
	image := filepath.Join(k.images, name)
	if _, err := os.Stat(image); err != nil {
		return fmt.Errorf("ErrImagePull: there is no image %s", c.Image)
	}
	mounts := []mount{{from: k.hosts, at: "/etc/hosts"}, {from: os.Getenv("PECAN_ROOT"), at: "/opt/repository", readOnly: true}}
	for _, m := range c.VolumeMounts {
		from, err := k.volume(ctx, r, m.Name)
		if err != nil {
			return err
		}
		mounts = append(mounts, mount{from: from, at: m.MountPath, readOnly: m.ReadOnly})
	}
	r.env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/tmp", "HOSTNAME=" + r.pod.Name, "KUBERNETES_SERVICE_HOST=" + hostIP, "KUBERNETES_SERVICE_PORT=" + apiPort}
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "status.podIP" {
			value = r.ip
		}
		r.env = append(r.env, e.Name+"="+value)
	}
	if err := os.MkdirAll(k.plane.path("logs"), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(k.log(r.pod.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command := expand(append(append([]string{}, c.Command...), c.Args...), r.env)
	r.started, r.failures = false, 0
	run, err := startContainer(k.dir(r, fmt.Sprint("container-", r.restarts)), image, r.pod, c, r.env, command, mounts, log)
	if err == nil {
		r.run = run
		r.current.Store(run)
	}
	return err
}

// container returns the running container, or nil.
func (r *podRun) container() *container {
	if run := r.current.Load(); run != nil && !run.ended() {
		return run
	}
	return nil
}

// find returns a pod that runs.
func (k *kubelet) find(pod string) *podRun {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	for _, r := range k.pods {
		if r.name == pod && r.container() != nil {
			return r
		}
	}
	return nil
}

// killIn kills the program of a pod.
func (k *kubelet) killIn(pod string) {
	k.plane.t.Helper()
	r := k.find(pod)
	if r == nil {
		k.plane.t.Fatalf("the pod %s does not run", pod)
	}
	r.container().signal(syscall.SIGKILL)
}

// inPod runs a command in a pod, with its user and environment.
func (k *kubelet) inPod(pod string, command ...string) (string, error) {
	r := k.find(pod)
	if r == nil {
		return "", fmt.Errorf("the pod %s does not run", pod)
	}
	run := r.container()
	if run == nil {
		return "", fmt.Errorf("the pod %s does not run", pod)
	}
	out, err := run.exec("10001:10001", r.env, command...).CombinedOutput()
	return string(out), err
}
