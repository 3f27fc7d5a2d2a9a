package provision

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// kubeAPI makes the calls for one workload. It uses REST clients for two groups, because the whole clientset brings the
// types of all groups into the dispatcher.
type kubeAPI struct {
	apps, core      *rest.RESTClient
	resource        string
	namespace, name string
	ordered         bool
}

// workload is the part of a Deployment or StatefulSet that the provider needs.
type workload struct {
	replicas int
	selector string
	refused  string
}

func newKubeAPI(cluster *rest.Config, kind, namespace, name string) (*kubeAPI, error) {
	a := &kubeAPI{namespace: namespace, name: name}
	switch kind {
	case "deployment":
		a.resource = "deployments"
	case "statefulset":
		a.resource, a.ordered = "statefulsets", true
	default:
		return nil, fmt.Errorf("workers cannot run in a Kubernetes %s: use deployment or statefulset", kind)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, autoscalingv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config := rest.CopyConfig(cluster)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.UserAgent = "pecan-dispatcher"
	config.Timeout = callTimeout
	client := func(path string, group schema.GroupVersion) (*rest.RESTClient, error) {
		c := rest.CopyConfig(config)
		c.APIPath, c.GroupVersion = path, &group
		return rest.RESTClientFor(c)
	}
	var err error
	if a.apps, err = client("/apis", appsv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	a.core, err = client("/api", corev1.SchemeGroupVersion)
	return a, err
}

func (a *kubeAPI) String() string { return a.resource + "/" + a.name + "." + a.namespace }

func (a *kubeAPI) wrap(action string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %s in Kubernetes: %w", action, a, err)
	}
	return nil
}

func (a *kubeAPI) workload(ctx context.Context) (workload, error) {
	var scale autoscalingv1.Scale
	err := a.apps.Get().Namespace(a.namespace).Resource(a.resource).Name(a.name).SubResource("scale").Do(ctx).Into(&scale)
	if err != nil {
		return workload{}, a.wrap("read the scale of", err)
	}
	w := workload{replicas: int(scale.Spec.Replicas), selector: scale.Status.Selector}
	if w.replicas > int(scale.Status.Replicas) && !a.ordered {
		var d appsv1.Deployment
		if err := a.apps.Get().Namespace(a.namespace).Resource(a.resource).Name(a.name).Do(ctx).Into(&d); err != nil {
			return workload{}, a.wrap("read", err)
		}
		w.refused = refusal(&d)
	}
	return w, nil
}

func (a *kubeAPI) pods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if selector == "" {
		// An empty selector would select the pods of others.
		return nil, fmt.Errorf("%s in Kubernetes has no selector", a)
	}
	err := a.core.Get().Namespace(a.namespace).Resource("pods").Param("labelSelector", selector).Do(ctx).Into(&list)
	return list.Items, a.wrap("list the pods of", err)
}

func (a *kubeAPI) setScale(ctx context.Context, replicas int) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	request := a.apps.Patch(types.MergePatchType).Namespace(a.namespace).Resource(a.resource).Name(a.name)
	return a.wrap("scale", request.SubResource("scale").Body(patch).Do(ctx).Error())
}

// annotate sets annotations of a pod; nil removes one. A pod that is gone needs none.
func (a *kubeAPI) annotate(ctx context.Context, pod string, annotations map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	err = a.core.Patch(types.MergePatchType).Namespace(a.namespace).Resource("pods").Name(pod).Body(patch).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return a.wrap("mark pod "+pod+" of", err)
}

func (a *kubeAPI) deletePod(ctx context.Context, pod string) error {
	err := a.core.Delete().Namespace(a.namespace).Resource("pods").Name(pod).Body(&metav1.DeleteOptions{}).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return a.wrap("remove pod "+pod+" of", err)
}
