package host

import (
	"strings"
	"testing"
)

func TestKernelDefaults(t *testing.T) {
	files := map[string]string{}
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		files["proc/sys/"+name] = value + "\n"
	}
	if err := CheckKernelDefaults(tree(t, files)); err != nil {
		t.Error(err)
	}
	check := func(want ...string) {
		t.Helper()
		err := CheckKernelDefaults(tree(t, files))
		for _, words := range want {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("got %v, want in it %q", err, words)
			}
		}
	}
	files["proc/sys/kernel/panic"] = "0\n"
	files["proc/sys/vm/overcommit_memory"] = "2\n"
	check("protect-kernel-defaults", "sysctl --system", "\nvm.overcommit_memory = 1   # is 2", "\nkernel.panic = 10   # is 0")
	delete(files, "proc/sys/kernel/panic")
	check("read what the kernel is set to")
}
