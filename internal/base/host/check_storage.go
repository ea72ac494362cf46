package host

import (
	"os"
	"path/filepath"
)

// checkStorage looks for what keeps volumes to their size where the file system has
// no project quotas.
func checkStorage(root string) []Check {
	const cost = "; without, claims wait unless their StorageClass is local-unlimited, or their disk has project quotas"
	loop := Check{Group: "storage", Name: "loop devices", Result: OK}
	// The device may be there before its module, which the kernel then loads.
	control, err := os.Open(filepath.Join(root, "dev", "loop-control"))
	if err != nil {
		loop.Result, loop.Detail, loop.Cost = Warn, "not there", "load the kernel module loop"+cost
	}
	control.Close()
	mkfs := Check{Group: "storage", Name: "mkfs.ext4", Result: Warn, Detail: "not there", Cost: "install the package e2fsprogs" + cost}
	for _, folder := range []string{"usr/sbin", "sbin", "usr/local/sbin", "usr/bin", "bin"} {
		path := filepath.Join(root, folder, "mkfs.ext4")
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			mkfs = Check{Group: "storage", Name: "mkfs.ext4", Result: OK, Detail: path}
			break
		}
	}
	return []Check{loop, mkfs}
}
