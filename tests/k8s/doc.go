// Package k8s tests the chart of deploy/helm and service/provision on a real Kubernetes control plane.
//
//	run.sh               builds the programs, once for each version, and runs the tests in namespaces of their own
//	plane_test.go        etcd, API server, controller manager and scheduler as processes
//	kubelet_test.go      a node: runs the containers of its pods as processes, and stops them
//	pod_volumes_test.go  the directories of a pod's volumes
//	pod_status_test.go   the probes of a pod, and what the node reports of it
//	container_test.go    one container: a root of its own over that of the host, with the pod's volumes and user
//	names_test.go        the names of services, in place of a DNS server
//	cluster_test.go      the chart on the control plane: install, look, evict, replace; the trainer
//	service_test.go      the chart with the real programs under a trainer; what the chart renders
//	automatic_test.go    the same with a dispatcher that starts and stops its workers
//	policy_test.go       whom the chart's network policies admit
//	provider_test.go     service/provision with pods that sleep
//	trainer.py           reads epochs and compares each with a local run
//
// The module is separate, so that the main go.mod does not name the packages of a whole control plane. All pods share
// one network namespace, in which each has an address of its own on the loopback device. Images are not pulled: the name of an
// image selects a directory of programs.
package k8s
