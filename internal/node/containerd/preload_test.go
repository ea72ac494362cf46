package containerd

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestImagesFolder changes the folder of images while containerd runs.
func TestImagesFolder(t *testing.T) {
	inNode(t, func(t *testing.T, dir string) {
		writeImages(t, dir)
		n := startNode(t, dir)
		const another = "kedge.test/another:1"
		archive := gzipped(t, dockerArchive(t, another, []byte("another")))
		write(t, dir+"/images/another.tgz", archive[:len(archive)/2])
		eventually(t, func() bool { return strings.Contains(n.log(), "cannot preload images of "+dir+"/images/another.tgz") })
		write(t, dir+"/images/another.tgz", archive)
		// Two archives have the same image.
		write(t, dir+"/images/twice.tar", dockerArchive(t, another, []byte("another")))
		eventually(t, func() bool {
			image := n.image(another)
			return image != nil && image.Pinned && strings.Contains(n.log(), "preloaded "+another+" from "+dir+"/images/twice.tar")
		})
		write(t, dir+"/images/list.txt", []byte("# what is there already\n"+helloImage+"\nnot a name\n"))
		eventually(t, func() bool {
			return strings.Contains(n.log(), dir+`/images/list.txt:3: \"not a name\" is not an image name`)
		})

		for _, name := range []string{"another.tgz", "hello.tar.gz"} {
			if err := os.Remove(dir + "/images/" + name); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"fifo.tar", "fifo.txt"} {
			if err := syscall.Mkfifo(dir+"/images/"+name, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"app.tar.lz4", ".app.tar.zst.part", "README"} {
			write(t, dir+"/images/"+name, []byte("not read"))
		}
		write(t, dir+"/images/broken.tar", []byte("not an archive"))
		eventually(t, func() bool {
			return strings.Contains(n.log(), "broken.tar") && strings.Contains(n.log(), "images/fifo.tar: this is a FIFO") &&
				strings.Contains(n.log(), "images/fifo.txt: this is a FIFO")
		})
		n.wantByDigest(another)
		for _, name := range []string{another, helloImage, pauseImage} {
			if image := n.image(name); image == nil || !image.Pinned {
				t.Errorf("%s is %v, want it pinned: a file still has it", name, image)
			}
		}
		for _, name := range []string{"twice.tar", "list.txt"} {
			if err := os.Remove(dir + "/images/" + name); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, func() bool {
			image := n.image(another)
			// The CRI cannot tell whether the other image is pinned: the pause image has the same
			// content.
			return image != nil && !image.Pinned && strings.Contains(n.log(), helloImage+" is no longer pinned")
		})
		if err := n.stop(syscall.SIGTERM); err != nil {
			t.Errorf("containerd ended with %v: %s", err, n.log())
		}
		for name, want := range map[string]int{"app.tar.lz4": 1, "README": 1, ".part": 0} {
			if count := strings.Count(n.log(), dir+"/images/"+name+" is not read"); count != want {
				t.Errorf("the log says %d times that %s is not read, want %d", count, name, want)
			}
		}
		if count := strings.Count(n.log(), "broken.tar"); count != 1 {
			t.Errorf("the log names broken.tar %d times, want once:\n%s", count, n.log())
		}
	})
}
