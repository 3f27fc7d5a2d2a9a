package k8s_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const space = "pecan"

// makeImages writes the programs of each image, as deploy/containers/Containerfile installs them.
func makeImages(t *testing.T, dir string) string {
	t.Helper()
	bin, venv := "/opt/repository/python/pecan/_bin/", "/opt/repository/.venv/"
	tensorflow, err := filepath.Glob(filepath.Join(os.Getenv("PECAN_ROOT"), ".venv/lib/python3*/site-packages/tensorflow"))
	if err != nil || len(tensorflow) != 1 {
		t.Fatalf("no TensorFlow in .venv: %v %v", tensorflow, err)
	}
	inside := strings.Replace(tensorflow[0], os.Getenv("PECAN_ROOT"), "/opt/repository", 1)
	python := "PYTHONPATH=/opt/repository/python PYTHONDONTWRITEBYTECODE=1 TF_CPP_MIN_LOG_LEVEL=3 exec " + venv + "bin/python"
	for image, programs := range map[string]map[string]string{
		"pecan-dispatcher": {"pecan-dispatcher": "exec " + bin + "pecan-dispatcher", "pecanctl": "exec " + bin + "pecanctl"},
		"pecan-worker":     {"pecan-worker": "LD_LIBRARY_PATH=" + inside + " TF_CPP_MIN_LOG_LEVEL=2 exec " + bin + "pecan-worker"},
		"pecan-client":     {"python": python},
		"sleep":            {},
	} {
		at := filepath.Join(dir, image, "usr/local/bin")
		check(t, os.MkdirAll(at, 0o755))
		for name, command := range programs {
			check(t, os.WriteFile(filepath.Join(at, name), []byte("#!/bin/sh\n"+command+` "$@"`+"\n"), 0o755))
		}
		if image == "pecan-client" {
			text, err := os.ReadFile(filepath.Join(os.Getenv("PECAN_ROOT"), "deploy/examples/train.py"))
			check(t, err)
			check(t, os.MkdirAll(filepath.Join(dir, image, "opt/pecan"), 0o755))
			check(t, os.WriteFile(filepath.Join(dir, image, "opt/pecan/train.py"), text, 0o644))
		}
	}
	return dir
}

// cluster is a control plane with a node.
type cluster struct {
	*plane
	*kubelet
	t *testing.T
}

func start(t *testing.T, cpus string) *cluster {
	t.Helper()
	p := startPlane(t)
	return &cluster{plane: p, kubelet: startKubelet(t, p, makeImages(t, p.path("images")), cpus), t: t}
}

// helm runs helm, which must succeed.
func (c *cluster) helm(args ...string) string {
	c.t.Helper()
	out, err := c.tryHelm(args...)
	if err != nil {
		c.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) tryHelm(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.programs, "helm"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HELM_CACHE_HOME="+c.path("helm"), "HELM_CONFIG_HOME="+c.path("helm"), "HELM_DATA_HOME="+c.path("helm"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func chart() string { return filepath.Join(os.Getenv("PECAN_ROOT"), "deploy/helm/pecan") }

// values are those that the test gives to the chart.
var values = []string{
	"--set", "image.registry=local", "--set", "workers.replicas=1", "--set", "workers.drainTimeoutSeconds=10", "--set", "workers.graceSeconds=10",
	"--set", "workers.args={--max-streams=2,--threads=1}", "--set", "workers.resources.requests.cpu=1", "--set", "cache.enabled=true",
	"--set-json", `data=[{"name":"numbers","mountPath":"/data/numbers","source":{"emptyDir":{}}}]`,
}

// podsOf lists the pods of a component that do not end.
func (c *cluster) podsOf(component string) []corev1.Pod {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods(space).List(c.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	check(c.t, err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func isReady(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

type status struct {
	Workers []struct {
		Address struct{ Tcp string }
		State   string
	}
	Jobs []struct {
		JobId     string `json:"job_id"`
		Placement *struct {
			Remote     int
			Converged  bool
			Why        string
			Candidates []struct {
				Remote, Windows int
				Predicted       float64 `json:"predicted_s"`
				Measured        float64 `json:"measured_s"`
				Score           float64
			}
		}
	}
	Provider *struct {
		Desired, Ready int
		Error          string
	}
}

func (c *cluster) status() (status, error) {
	var s status
	out, err := c.inPod("pecan-dispatcher-0", "pecanctl", "status", "--json", "--dispatcher", "pecan-dispatcher:5050")
	if err != nil {
		return s, fmt.Errorf("%w: %s", err, out)
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// workersAre waits until as many workers are ready and registered, and no more.
func (c *cluster) workersAre(want int) {
	c.t.Helper()
	until(c.t, fmt.Sprint(want, " workers are ready and registered"), func() error {
		s, err := c.status()
		if err != nil {
			return err
		}
		pods := c.podsOf("worker")
		ready := 0
		for _, p := range pods {
			if isReady(p) {
				ready++
			}
		}
		if len(pods) != want || ready != want || len(s.Workers) != want {
			return fmt.Errorf("%d pods, %d ready, %d workers registered", len(pods), ready, len(s.Workers))
		}
		return nil
	})
}

func (c *cluster) scale(want int) (string, error) {
	return c.inPod("pecan-dispatcher-0", "pecanctl", "scale", fmt.Sprint(want), "--provider", "kubernetes:deployment/pecan-worker", "--dispatcher", "pecan-dispatcher:5050", "--wait", "5m")
}

var complete = regexp.MustCompile(`epoch (\d+) is complete`)

// epochs counts the complete epochs of the trainer, and fails if one was wrong or the trainer has ended.
func (c *cluster) epochs() int {
	c.t.Helper()
	text := c.said("trainer", 1<<20)
	if strings.Contains(text, "is wrong") || strings.Contains(text, "Traceback") {
		c.t.Fatalf("the trainer says:\n%s", text[max(0, len(text)-3000):])
	}
	return len(complete.FindAllString(text, -1))
}

// moreEpochs waits until the trainer has completed more epochs: at least one that began now.
func (c *cluster) moreEpochs(when string) {
	c.t.Helper()
	before := c.epochs()
	until(c.t, "the trainer completes two epochs "+when, func() error {
		if now := c.epochs(); now < before+2 {
			return fmt.Errorf("%d of 2 epochs; it says: %s", now-before, c.said("trainer", 300))
		}
		return nil
	})
}

// evict evicts a worker's pod, as soon as the budget allows it.
func (c *cluster) evict(pod corev1.Pod) {
	c.t.Helper()
	until(c.t, "the budget allows an eviction", func() error {
		err := c.tryEvict(pod.Name)
		if apierrors.IsTooManyRequests(err) {
			return err
		}
		check(c.t, err)
		return nil
	})
}

func (c *cluster) tryEvict(pod string) error {
	return c.client.PolicyV1().Evictions(space).Evict(c.t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: space}})
}

// gone fails if the pod still is a worker's.
func (c *cluster) gone(pod corev1.Pod) {
	c.t.Helper()
	if slices.ContainsFunc(c.podsOf("worker"), func(p corev1.Pod) bool { return p.UID == pod.UID }) {
		c.t.Errorf("%s is still there", pod.Name)
	}
}

// replaceDispatcher deletes the dispatcher's pod, and waits for another one.
func (c *cluster) replaceDispatcher() {
	c.t.Helper()
	dispatcher := c.podsOf("dispatcher")[0]
	check(c.t, c.client.CoreV1().Pods(space).Delete(c.t.Context(), dispatcher.Name, metav1.DeleteOptions{}))
	until(c.t, "another pod of the dispatcher is ready", func() error {
		pods := c.podsOf("dispatcher")
		if len(pods) != 1 || pods[0].UID == dispatcher.UID || !isReady(pods[0]) {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
}

// startTrainer starts the trainer with further arguments.
func (c *cluster) startTrainer(args ...string) {
	c.t.Helper()
	none, grace := int32(0), int64(120)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "trainer"}, Spec: batchv1.JobSpec{BackoffLimit: &none, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pecan-client": "true"}},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{
			Name: "trainer", Image: "local/pecan-client:0", Command: append([]string{"python", "/opt/repository/tests/k8s/trainer.py", "pecan-dispatcher.pecan:5050"}, args...),
		}}},
	}}}
	_, err := c.client.BatchV1().Jobs(space).Create(c.t.Context(), job, metav1.CreateOptions{})
	check(c.t, err)
}

// said returns the output of the pods whose names begin so.
func (c *cluster) said(pods string, most int) string {
	var text strings.Builder
	files, _ := filepath.Glob(c.log(pods + "*"))
	for _, file := range files {
		text.WriteString(tail(file, most))
	}
	return text.String()
}

// makeVolume makes a volume that a claim without a class gets.
func (c *cluster) makeVolume(name string) {
	c.t.Helper()
	dir := c.path("volume-" + name)
	check(c.t, os.MkdirAll(dir, 0o755))
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{"storage": resource.MustParse("20Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	}}
	_, err := c.client.CoreV1().PersistentVolumes().Create(c.t.Context(), volume, metav1.CreateOptions{})
	check(c.t, err)
}

// endTrainer asks the trainer to end, and waits until its last epoch was complete.
func (c *cluster) endTrainer() {
	c.t.Helper()
	ctx := c.t.Context()
	trainer, err := c.client.CoreV1().Pods(space).List(ctx, metav1.ListOptions{LabelSelector: "job-name=trainer"})
	check(c.t, err)
	if len(trainer.Items) != 1 || trainer.Items[0].Status.ContainerStatuses[0].RestartCount != 0 {
		c.t.Errorf("the trainer was restarted: %+v", trainer.Items)
	}
	foreground := metav1.DeletePropagationForeground
	check(c.t, c.client.BatchV1().Jobs(space).Delete(ctx, "trainer", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	until(c.t, "the trainer has ended", func() error {
		if !strings.Contains(c.said("trainer", 1000), "the trainer ends") {
			return fmt.Errorf("it says %s", c.said("trainer", 200))
		}
		return nil
	})
	c.t.Logf("%d epochs, all complete and without repeated elements", c.epochs())
}

// uninstall removes the release.
func (c *cluster) uninstall() {
	c.t.Helper()
	c.helm("uninstall", "pecan", "-n", space, "--wait", "--timeout", "3m")
	until(c.t, "nothing of the release is left", func() error {
		if left := len(c.podsOf("worker")) + len(c.podsOf("dispatcher")); left > 0 {
			return fmt.Errorf("%d pods", left)
		}
		return nil
	})
}

// showLogs shows what the programs have written, if the test fails.
func (c *cluster) showLogs() {
	c.t.Cleanup(func() {
		if c.t.Failed() {
			if s, err := c.status(); err == nil {
				decisions, err := c.inPod("pecan-dispatcher-0", "sh", "-c", "cat /tmp/decisions")
				c.t.Logf("the decisions (%v):\n%s", err, decisions)
				for _, j := range s.Jobs {
					shown, err := c.inPod("pecan-dispatcher-0", "pecanctl", "explain", j.JobId, "--dispatcher", "pecan-dispatcher:5050")
					c.t.Logf("pecanctl explain %s (%v):\n%s", j.JobId, err, shown)
				}
			}
			for _, name := range []string{"pecan-dispatcher-0", "trainer"} {
				c.t.Logf("the log of %s:\n%s", name, c.said(name, 3000))
			}
			for _, p := range c.podsOf("worker") {
				c.t.Logf("the log of %s:\n%s", p.Name, c.said(p.Name, 800))
			}
		}
	})
}
