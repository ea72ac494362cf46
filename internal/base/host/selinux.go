package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/selinux/go-selinux"
)

// selinuxFS is where the kernel answers questions about its policy of SELinux.
const selinuxFS = "/sys/fs/selinux"

// CheckSELinux returns an error if SELinux would keep containers from starting. To confine them it needs a policy that has labels
// for their processes and files, and that lets kedge start such processes. If SELinux is off, containers run without it, and
// containerd logs that.
func CheckSELinux() error {
	if !selinux.GetEnabled() {
		return nil
	}
	process, file := selinux.ContainerLabels()
	defer selinux.ReleaseLabel(process)
	own, err := selinux.CurrentLabel()
	if err != nil {
		own = ""
	}
	return confinement{
		enforced: selinux.EnforceMode() == selinux.Enforcing,
		own:      own, process: process, file: file,
		known:   selinux.SecurityCheckContext,
		allowed: allowed,
	}.check()
}

// confinement is what CheckSELinux looks at.
type confinement struct {
	// enforced is whether the kernel refuses what the policy does not allow. In permissive mode it only logs that.
	enforced           bool
	own, process, file string
	// known returns an error for a label that the loaded policy does not have.
	known func(label string) error
	// allowed tells whether the policy lets a process with the label own do something to one with the label other.
	allowed func(own, other, class, permission string) (bool, error)
}

func (c confinement) check() error {
	const advice = "install the distribution's policy for containers (the package container-selinux, if there is one), or do not set selinux"
	if c.process == "" || c.file == "" {
		return errors.New("selinux: the policy of SELinux names no labels for containers (the file lxc_contexts): " + advice)
	}
	for _, label := range []string{c.process, c.file} {
		if c.known(label) != nil {
			return fmt.Errorf("selinux: the policy of SELinux does not have the label %s, which containers need: %s", label, advice)
		}
	}
	if !c.enforced {
		return nil
	}
	for _, need := range []struct{ class, permission string }{{"process", "transition"}, {"process2", "nnp_transition"}} {
		// A policy that does not have the permission, or lets nobody ask, has no answer. Then the first pod tells.
		if ok, err := c.allowed(c.own, c.process, need.class, need.permission); err == nil && !ok {
			return fmt.Errorf("selinux: the policy of SELinux does not let kedge (%s) start containers (%s): "+
				"install the module in docs/selinux.md, or do not set selinux", c.own, c.process)
		}
	}
	return nil
}

// allowed asks the kernel.
func allowed(own, other, class, permission string) (bool, error) {
	folder := filepath.Join(selinuxFS, "class", class)
	index, err := os.ReadFile(filepath.Join(folder, "index"))
	if err != nil {
		return false, err
	}
	number, err := os.ReadFile(filepath.Join(folder, "perms", permission))
	if err != nil {
		return false, err
	}
	bit, err := strconv.Atoi(strings.TrimSpace(string(number)))
	if err != nil {
		return false, err
	}
	file, err := os.OpenFile(filepath.Join(selinuxFS, "access"), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer file.Close()
	if _, err := fmt.Fprintf(file, "%s %s %s", own, other, strings.TrimSpace(string(index))); err != nil {
		return false, err
	}
	answer, err := io.ReadAll(file)
	if err != nil {
		return false, err
	}
	var given, decided, logged, quiet, sequence, flags uint32
	if _, err := fmt.Sscanf(string(answer), "%x %x %x %x %d %x", &given, &decided, &logged, &quiet, &sequence, &flags); err != nil {
		return false, err
	}
	const permissive = 1 // AVD_FLAGS_PERMISSIVE: the policy only logs what a process of this domain may not do
	return given&(1<<(bit-1)) != 0 || flags&permissive != 0, nil
}
