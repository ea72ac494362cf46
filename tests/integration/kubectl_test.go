package integration

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

// TestKubectl uses those commands of kubectl that go through the kubelet.
func TestKubectl(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.webServer(1, corev1.ServiceTypeClusterIP)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: shell}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: ` + busybox + `
    stdin: true
    command: [sh, -c, 'echo hello; while read line; do echo "got $line"; done']
`)
	s.pod("shell")
	web := s.pods("app=web", 1)[0].Name

	t.Run("version", func(t *testing.T) {
		s := s.on(t)
		if version := s.kubectl("version"); !regexp.MustCompile(`Server Version: v1\.\d+\.\d+\+kedge`).MatchString(version) {
			t.Errorf("kubectl version says %s", version)
		}
	})
	t.Run("logs", func(t *testing.T) {
		s := s.on(t)
		if output := s.kubectl("logs", "shell"); output != "hello\n" {
			t.Errorf("logs are %q", output)
		}
		if output := s.kubectl("logs", "deployment/web", "--tail=1"); !strings.Contains(output, "served / to") {
			t.Errorf("logs of the deployment are %q", output)
		}
	})
	t.Run("exec", func(t *testing.T) {
		s := s.on(t)
		command := s.kubectlCommand("exec", "-i", "shell", "--", "sh", "-c", "tr a-z A-Z; exit 7")
		command.Stdin = strings.NewReader("through stdin")
		output, err := command.CombinedOutput()
		if !strings.HasPrefix(string(output), "THROUGH STDIN") || command.ProcessState.ExitCode() != 7 {
			t.Errorf("exec printed %q and ended with %v, want status 7", output, err)
		}
	})
	t.Run("attach", func(t *testing.T) {
		s := s.on(t)
		text := rand.String(8)
		command := s.kubectlCommand("attach", "-i", "shell")
		// kubectl ends when both streams have ended, so stdin is kept open.
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer writer.Close()
		command.Stdin = reader
		output, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		reader.Close()
		defer func() { _ = command.Process.Kill() }()
		// Data that are sent before the container is attached must not be lost.
		fmt.Fprintln(writer, text)
		timer := time.AfterFunc(patience, func() { _ = command.Process.Kill() })
		defer timer.Stop()
		scanner := bufio.NewScanner(output)
		for scanner.Scan() {
			if scanner.Text() == "got "+text {
				return
			}
		}
		t.Errorf("the container's answer did not come")
	})
	t.Run("port-forward", func(t *testing.T) {
		s := s.on(t)
		command := s.kubectlCommand("port-forward", "service/web", ":80")
		output, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		command.Stderr = os.Stderr
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = command.Process.Kill() }()
		// "Forwarding from 127.0.0.1:40000 -> 8080"
		line, err := bufio.NewReader(output).ReadString('\n')
		match := regexp.MustCompile(`from (127\.0\.0\.1:\d+)`).FindStringSubmatch(line)
		if match == nil {
			t.Fatalf("kubectl printed %q, %v", line, err)
		}
		for range 3 {
			answer, err := s.server.Host.Get(match[1])
			if err != nil || !strings.Contains(answer, "hostname="+web) {
				t.Errorf("got %q, %v", answer, err)
			}
		}
	})
	t.Run("cp", func(t *testing.T) {
		s := s.on(t)
		// This is more than fits into any buffer on the way.
		text := strings.Repeat(rand.String(64), 40_000)
		s.server.Host.WriteFile("/run/cp/there", text)
		s.kubectl("cp", "/run/cp/there", "shell:/tmp/there")
		s.kubectl("cp", "shell:/tmp/there", "/run/cp/back")
		back, err := os.ReadFile(s.server.Host.Path("/run/cp/back"))
		if err != nil || string(back) != text {
			t.Errorf("%d bytes came back of %d, %v", len(back), len(text), err)
		}
	})
	t.Run("logs of a pod that goes on", func(t *testing.T) {
		s := s.on(t)
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		defer cancel()
		stream, err := s.client.CoreV1().Pods(s.namespace).GetLogs(web, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		if line, err := bufio.NewReader(stream).ReadString('\n'); err != nil || !strings.Contains(line, "served") {
			t.Errorf("got %q, %v", line, err)
		}
	})
	t.Run("top of what is there", func(t *testing.T) {
		s := s.on(t)
		for _, resource := range []string{"nodes", "pods -A", "services -A", "api-resources"} {
			args := append([]string{"get"}, strings.Fields(resource)...)
			if resource == "api-resources" {
				args = args[1:]
			}
			if s.kubectl(args...) == "" {
				t.Errorf("kubectl %s printed nothing", strings.Join(args, " "))
			}
		}
	})
}
