// Follows k8s.io/kubernetes v1.37.2, pkg/kubelet/cm/container_manager_linux.go.

package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/component-helpers/node/util/sysctl"
)

// kernelDefaults are what the kubelet sets, or wants to be set
// (pkg/kubelet/cm/container_manager_linux.go, setupKernelTunables).
//
//upstream:follows k8s.io/kubernetes/pkg/kubelet/cm/container_manager_linux.go setupKernelTunables
var kernelDefaults = []struct {
	name  string
	value int
}{
	{sysctl.VMOvercommitMemory, sysctl.VMOvercommitMemoryAlways},
	{sysctl.VMPanicOnOOM, sysctl.VMPanicOnOOMInvokeOOMKiller},
	{sysctl.KernelPanic, sysctl.KernelPanicRebootTimeout},
	{sysctl.KernelPanicOnOops, sysctl.KernelPanicOnOopsAlways},
	{sysctl.RootMaxKeys, sysctl.RootMaxKeysSetting},
	{sysctl.RootMaxBytes, sysctl.RootMaxBytesSetting},
}

// CheckKernelDefaults returns what has to be set where kedge must not do it. root
// is / but for tests.
func CheckKernelDefaults(root string) error {
	var lines []string
	for _, d := range kernelDefaults {
		text, err := os.ReadFile(filepath.Join(root, "proc/sys", d.name))
		if err != nil {
			return fmt.Errorf("protect-kernel-defaults: read what the kernel is set to: %w", err)
		}
		if value := strings.TrimSpace(string(text)); value != strconv.Itoa(d.value) {
			lines = append(lines, fmt.Sprintf("%s = %d   # is %s", strings.ReplaceAll(d.name, "/", "."), d.value, value))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("protect-kernel-defaults: the kernel is not set as the kubelet wants it, and kedge is not to change that: "+
		"write these lines into /etc/sysctl.d/90-kedge.conf, and run `sysctl --system`:\n%s", strings.Join(lines, "\n"))
}
