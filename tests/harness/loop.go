package harness

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// attach attaches a file to a loop device.
func attach(backing *os.File, flags uint32) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: flags}}
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprint("/dev/loop", number), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		// Another process was faster.
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("set up %s: %w", device.Name(), err)
		}
	}
}

// Loops returns the loop devices whose files are on the disk. The host itself has set them up.
func (d *Disk) Loops() (names []string, err error) {
	var disk unix.Stat_t
	if err := unix.Stat(d.host.Path(diskFolders[0]), &disk); err != nil {
		return nil, fmt.Errorf("look at the disk: %w", err)
	}
	err = hosts.ForLoops(func(device *os.File, info *unix.LoopInfo64) error {
		if info.Device == disk.Dev {
			names = append(names, device.Name())
		}
		return nil
	})
	return names, err
}
