package containerd

import (
	"bytes"
	"syscall"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// TestPartsOfArchives kills containerd while it imports images. The parts that it leaves are longer than the files of the next
// archives.
func TestPartsOfArchives(t *testing.T) {
	inNode(t, func(t *testing.T, dir string) {
		writeImages(t, dir)
		n := startNode(t, dir)
		client, err := containerd.NewWithConn(n.conn, containerd.WithDefaultNamespace(namespace))
		if err != nil {
			t.Fatal(err)
		}
		ctx := namespaces.WithNamespace(t.Context(), namespace)
		for _, name := range []string{partPrefix + "index.json", partPrefix + "config.json", partPrefix + "layer.tar", "layer-sha256:of-a-pull"} {
			writer, err := client.ContentStore().Writer(ctx, content.WithRef(name))
			if err == nil {
				_, err = writer.Write(bytes.Repeat([]byte("old"), 1<<20))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_ = n.stop(syscall.SIGKILL)
		const docker, oci = "kedge.test/docker:1", "kedge.test/oci:1"
		write(t, dir+"/images/docker.tar", dockerArchive(t, docker, []byte("docker")))
		write(t, dir+"/images/oci.tar", ociArchive(t, oci, []byte("oci")))
		n = startNode(t, dir)
		for _, name := range []string{docker, oci} {
			if n.image(name) == nil {
				t.Errorf("%s is not there", name)
			}
		}
		if client, err = containerd.NewWithConn(n.conn, containerd.WithDefaultNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		left, err := client.ContentStore().ListStatuses(ctx)
		if err != nil || len(left) != 1 || left[0].Ref != "layer-sha256:of-a-pull" {
			t.Errorf("left: %v, %v, want what a pull continues", left, err)
		}
	})
}
