package integration

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestJob runs a Job to completion: three pods, one of which fails at first.
func TestJob(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: batch/v1
kind: Job
metadata: {name: count}
spec:
  completions: 3
  parallelism: 3
  completionMode: Indexed
  template:
    spec:
      restartPolicy: OnFailure
      volumes: [{name: memory, emptyDir: {}}]
      containers:
      - name: main
        image: ` + busybox + `
        command: [sh, -c, 'echo "index $JOB_COMPLETION_INDEX"; test "$JOB_COMPLETION_INDEX" != 1 || test -e /memory/again || { touch /memory/again; exit 1; }']
        volumeMounts: [{name: memory, mountPath: /memory}]
`)
	s.eventually("the Job to complete", func() error {
		job, err := s.client.BatchV1().Jobs(s.namespace).Get(s.ctx, "count", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if job.Status.Succeeded != 3 || job.Status.CompletedIndexes != "0-2" {
			return fmt.Errorf("status %+v", job.Status)
		}
		return nil
	})
}

// TestCronJob waits for the first Job of a CronJob, at most a minute, which is its smallest unit.
func TestCronJob(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: batch/v1
kind: CronJob
metadata: {name: every-minute}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      template:
        metadata: {labels: {app: cron}}
        spec:
          restartPolicy: Never
          containers: [{name: main, image: ` + testserver + `, args: [exit, "0"]}]
`)
	s.eventually("a Job of the CronJob", func() error {
		jobs, err := s.client.BatchV1().Jobs(s.namespace).List(s.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, job := range jobs.Items {
			if job.Status.Succeeded == 1 && strings.HasPrefix(job.Name, "every-minute-") {
				return nil
			}
		}
		return fmt.Errorf("%d jobs, none succeeded", len(jobs.Items))
	})
}

// TestStatefulSet checks that the pods of a StatefulSet are created in order and have DNS names of
// their own, which a replaced pod keeps.
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: http, port: 8080}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: ` + testserver + `
        args: [serve, "8080"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`)
	s.sleeper("client")
	pods := s.pods("app=db", 2)
	if pods[0].Name != "db-0" || pods[1].Name != "db-1" || pods[1].CreationTimestamp.Before(&pods[0].CreationTimestamp) {
		t.Errorf("pods are %s and %s", pods[0].Name, pods[1].Name)
	}
	answers := func() {
		t.Helper()
		for _, pod := range []string{"db-0", "db-1"} {
			s.eventuallyIn("client", pod+" to answer under its own name", func(output string) bool {
				return strings.HasPrefix(output, "hostname="+pod+"\n")
			}, "/testserver", "fetch", "http://"+pod+".db:8080/")
		}
	}
	answers()
	s.kubectl("delete", "pod", "db-0", "--wait")
	s.pods("app=db", 2)
	answers()
}

// TestDaemonSet checks that each node has a pod.
func TestDaemonSet(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec:
      terminationGracePeriodSeconds: 1
      hostNetwork: true
      containers: [{name: main, image: ` + testserver + `, args: [sleep]}]
`)
	pod := s.pods("app=everywhere", 1)[0]
	if pod.Spec.NodeName != s.server.Host.Name || pod.Status.PodIP != s.server.Host.Address.String() {
		t.Errorf("the pod is on %s with address %s", pod.Spec.NodeName, pod.Status.PodIP)
	}
}

// TestRollout updates a Deployment without losing a request, and undoes it.
func TestRollout(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: ` + testserver + `
        args: [serve, "8080"]
        env: [{name: VERSION, value: one}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`)
	version := func() string {
		return s.kubectl("get", "pods", "-l", "app=app", "-o", "jsonpath={.items[*].spec.containers[0].env[0].value}")
	}
	s.kubectl("rollout", "status", "deployment/app", "--timeout=2m")
	s.kubectl("set", "env", "deployment/app", "VERSION=two")
	s.kubectl("rollout", "status", "deployment/app", "--timeout=2m")
	s.pods("app=app", 2)
	if v := version(); v != "two two" {
		t.Errorf("after the update the pods are of version %s", v)
	}
	s.kubectl("rollout", "undo", "deployment/app")
	s.kubectl("rollout", "status", "deployment/app", "--timeout=2m")
	s.pods("app=app", 2)
	if v := version(); v != "one one" {
		t.Errorf("after the undo the pods are of version %s", v)
	}
	if history := s.kubectl("rollout", "history", "deployment/app"); !strings.Contains(history, "3 ") {
		t.Errorf("history is %s", history)
	}
}
