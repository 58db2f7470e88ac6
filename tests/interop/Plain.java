import org.zeromq.ZMQ;

/** A PUSH program of JeroMQ 0.3.6, which speaks ZMTP 2: java -cp jeromq.jar Plain.java ENDPOINT */
public class Plain {
    public static void main(String[] arguments) throws Exception {
        ZMQ.Socket socket = ZMQ.context(1).socket(ZMQ.PUSH);
        socket.connect(arguments[0]);
        socket.send("hello");
        System.in.read();
        System.exit(0);
    }
}
