package k8s_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probe asks the probes of the container. Periods are shorter than in the pod, so that tests are fast.
func (k *kubelet) probe(r *podRun) {
	c := &r.pod.Spec.Containers[0]
	if c.StartupProbe == nil || get(r, c.StartupProbe) == nil {
		r.started = true
	}
	r.ready = r.started && (c.ReadinessProbe == nil || get(r, c.ReadinessProbe) == nil)
	if !r.started || c.LivenessProbe == nil {
		return
	}
	if get(r, c.LivenessProbe) == nil {
		r.failures = 0
	} else if r.failures++; r.failures > 10*c.LivenessProbe.FailureThreshold {
		r.run.signal(syscall.SIGKILL)
	}
}

func get(r *podRun, p *corev1.Probe) error {
	port := p.HTTPGet.Port.String()
	if p.HTTPGet.Port.Type == intstr.String {
		for _, named := range r.pod.Spec.Containers[0].Ports {
			if named.Name == port {
				port = fmt.Sprint(named.ContainerPort)
			}
		}
	}
	client := http.Client{Timeout: time.Duration(max(p.TimeoutSeconds, 1)) * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + r.ip + ":" + port + p.HTTPGet.Path)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode >= 400 {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	return nil
}

// report writes the status of the pod if it has changed.
func (k *kubelet) report(ctx context.Context, r *podRun, phase corev1.PodPhase, waiting string) {
	line := fmt.Sprint(phase, r.ready, r.restarts, r.started, waiting, r.run == nil)
	if line == r.reported {
		return
	}
	pods := k.plane.client.CoreV1().Pods(r.pod.Namespace)
	pod, err := pods.Get(ctx, r.pod.Name, metav1.GetOptions{})
	if err != nil || pod.UID != r.pod.UID {
		return
	}
	status := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, Ready: r.ready, Started: &r.started, RestartCount: r.restarts}
	switch {
	case waiting != "":
		reason, message, _ := strings.Cut(waiting, ": ")
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
	case r.run != nil && r.run.ended():
		status.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: int32(r.run.code)}
	case r.run != nil:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(r.run.started)}
	}
	pod.Status.Phase, pod.Status.PodIP, pod.Status.HostIP = phase, r.ip, hostIP
	pod.Status.PodIPs = []corev1.PodIP{{IP: r.ip}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		value := corev1.ConditionTrue
		if !r.ready && kind != corev1.PodInitialized {
			value = corev1.ConditionFalse
		}
		setCondition(pod, kind, value)
	}
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err == nil {
		r.reported = line
	}
}

func setCondition(pod *corev1.Pod, kind corev1.PodConditionType, value corev1.ConditionStatus) {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			if c.Status != value {
				c.Status, c.LastTransitionTime = value, metav1.Now()
			}
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: value, LastTransitionTime: metav1.Now()})
}
